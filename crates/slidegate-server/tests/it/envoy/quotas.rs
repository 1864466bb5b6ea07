//! Quotas that are charged at the end of a response: Envoy peeks before the request and reports its cost afterwards.

use std::fs;

use serde_json::json;
use slidegate_testkit::until;
use tempfile::TempDir;

use super::{Envoy, LONG_TIMEOUT, Upstream, try_get};
use crate::process::{ServeProcess, slidegate};

/// Peeks at a user's tokens, and reports the cost of the request at the end of its response.
const TOKENS: &str = "domain: edge
                      rate_limits:
                        - actions: [{request_headers: {header_name: x-user, descriptor_key: tokens}}]
                          hits_addend: {number: 0}
                        - actions: [{request_headers: {header_name: x-user, descriptor_key: tokens}}]
                          hits_addend: {format: '%REQ(x-cost)%'}
                          apply_on_stream_done: true";

/// Peeks at the quotas of two services, and charges the service to which the metadata routes the request.
const SERVICES: &str = "domain: edge
                      rate_limits:
                        - actions: [{generic_key: {descriptor_key: service, descriptor_value: service_1}}]
                          hits_addend: {number: 0}
                        - actions: [{generic_key: {descriptor_key: service, descriptor_value: service_2}}]
                          hits_addend: {number: 0}
                        - actions:
                            - metadata:
                                descriptor_key: service
                                metadata_key: {key: envoy.filters.http.ratelimit, path: [{key: metadata}, {key: name}]}
                          hits_addend: {number: 1}
                          apply_on_stream_done: true";
const DOMAIN: &str = "domain: edge";
const ROUTER: &str = "                  - name: envoy.filters.http.router\n";
/// Selects the route again by the metadata of the rate limit service.
const ROUTE_BY_METADATA: &str = r#"                  - name: envoy.filters.http.lua
                    typed_config:
                      "@type": type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua
                      default_source_code:
                        inline_string: |
                          function envoy_on_request(request)
                            local metadata = request:streamInfo():dynamicMetadata():get("envoy.filters.http.ratelimit")
                            request:headers():replace("x-service", metadata["metadata"]["name"])
                            request:clearRouteCache()
                          end
                  - name: envoy.filters.http.router
"#;
const ROUTES: &str = "                      routes:\n";
const ROUTE_TO_SECOND: &str = r"                      routes:
                        - match: {prefix: /, headers: [{name: x-service, string_match: {exact: service_2}}]}
                          route: {cluster: second}
";
const CLUSTERS: &str = "  clusters:\n";

fn limiter(limits: &str, options: &[&str]) -> (ServeProcess, TempDir) {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("edge.yaml"), limits).unwrap();
    let mut command = slidegate();
    command.args(["serve", "--http", "127.0.0.1:0", "--envoy-config"]).arg(folder.path()).args(options);
    (ServeProcess::start(&mut command), folder)
}

/// Returns the number of calls that Envoy has made.
fn calls(limiter: &ServeProcess) -> u64 {
    let metrics = limiter.get("/metrics").body;
    let count = metrics.lines().find(|line| {
        line.starts_with("slidegate_request_seconds_count{") && line.contains("verb=\"should-rate-limit\"")
    });
    count.and_then(|line| line.rsplit_once(' ')).map_or(0, |(_, count)| count.parse().unwrap())
}

/// Sends a request and waits until Envoy has reported its cost, which happens after the response. Envoy also reports a
/// denied request with `x-cost`.
fn get(envoy: &Envoy, limiter: &ServeProcess, headers: &str) -> (u16, String) {
    let before = calls(limiter);
    let response = try_get(envoy.ingress, "/", headers.as_bytes()).unwrap();
    if response.status == 200 || headers.contains("x-cost") {
        until("the cost is reported", || match calls(limiter) - before {
            2 => Ok(()),
            count => Err(format!("{count} calls")),
        });
    }
    (response.status, response.body)
}

#[test]
fn a_reported_cost_counts_in_full_and_denies_later_requests() {
    let cases = [("a", 1000, 300, 4), ("b", 1000, 2500, 1), ("c", 2, 1, 3), ("d", 1000, 1000, 2)];
    let limit = |(user, limit, ..): &(&str, u32, u32, usize)| {
        format!(
            "  - {{key: tokens, value: {user}, rate_limit: {{unit: year, requests_per_unit: {limit}}}}}\n"
        )
    };
    let limits = format!("domain: edge\ndescriptors:\n{}", cases.iter().map(limit).collect::<String>());
    for algorithm in ["fixed-window", "sliding-window", "token-bucket"] {
        let (limiter, _folder) = limiter(&limits, &["--envoy-algorithm", algorithm]);
        let envoy = Envoy::start(limiter.grpc_address(), &[LONG_TIMEOUT, (DOMAIN, TOKENS)]);
        for (user, limit, cost, allowed) in cases {
            let headers = format!("x-user: {user}\r\nx-cost: {cost}\r\n");
            let statuses: Vec<u16> = (0..allowed + 2).map(|_| get(&envoy, &limiter, &headers).0).collect();
            let expected = [vec![200; allowed], vec![429; 2]].concat();
            assert_eq!(statuses, expected, "{limit} at {cost} each, {algorithm}");
        }
    }
}

/// The example of envoyproxy/ratelimit for several services.
#[test]
fn requests_are_routed_to_the_first_service_with_quota_remaining() {
    let limits = "
domain: edge
descriptors:
  - key: service
    value: service_1
    quota_mode: true
    metadata: {name: service_1}
    rate_limit: {unit: year, requests_per_unit: 1}
  - key: service
    value: service_2
    quota_mode: true
    metadata: {name: service_2}
    rate_limit: {unit: year, requests_per_unit: 2}
";
    let (limiter, _folder) = limiter(limits, &[]);
    let second = Upstream::start("second");
    let cluster = json!({
        "name": "second", "type": "STATIC", "load_assignment": {"cluster_name": "second", "endpoints": [{
            "lb_endpoints": [{"endpoint": {"address": {"socket_address":
                {"address": "127.0.0.1", "port_value": second.port()}}}}],
        }]},
    });
    let clusters = format!("{CLUSTERS}    - {cluster}\n");
    let changes = [
        LONG_TIMEOUT,
        (DOMAIN, SERVICES),
        (ROUTER, ROUTE_BY_METADATA),
        (ROUTES, ROUTE_TO_SECOND),
        (CLUSTERS, clusters.as_str()),
    ];
    let envoy = Envoy::start(limiter.grpc_address(), &changes);
    let responses: Vec<_> = (0..6).map(|_| get(&envoy, &limiter, "")).collect();
    let outcomes: Vec<&str> = responses
        .iter()
        .map(|(status, body)| if *status == 200 { body.as_str() } else { "denied" })
        .collect();
    assert_eq!(outcomes, ["up", "up", "second", "second", "second", "denied"]);
}
