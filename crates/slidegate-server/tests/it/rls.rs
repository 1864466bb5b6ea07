//! Envoy's rate limit service over JSON: the limit that matches a descriptor, and its status.

mod reported_costs;
mod shared_store;
mod wildcards;

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::Stdio;

use base64::prelude::{BASE64_STANDARD, Engine};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::harness::Response;
use crate::process::{ServeProcess, slidegate};

/// Limits with windows of a week or more, which do not end during a test.
pub(crate) const LIMITS: &str = "
domain: shop
descriptors:
  - key: user
    rate_limit: {unit: year, requests_per_unit: 2, name: per-user}
    descriptors:
      - {key: path, rate_limit: {unit: week, requests_per_unit: 1}}
  - {key: user, value: vip, rate_limit: {unlimited: true, replaces: [{name: global}]}}
  - {key: user, value: banned, rate_limit: {unit: month, requests_per_unit: 0, name: ban}}
  - {key: all, rate_limit: {unit: year, requests_per_unit: 1, name: global}}
  - {key: path, value: /a/*, rate_limit: {unit: year, requests_per_unit: 1, name: first}}
  - {key: path, value: /a/b*, rate_limit: {unit: year, requests_per_unit: 1, name: second}}
  - {key: path, value: /a/bc, rate_limit: {unit: year, requests_per_unit: 1, name: exact}}
  - {key: path, rate_limit: {unit: year, requests_per_unit: 1, name: bare}}
  - {key: file, value: f*, share_threshold: true, rate_limit: {unit: year, requests_per_unit: 2}}
  - {key: soft, shadow_mode: true, rate_limit: {unit: year, requests_per_unit: 1}}
  - key: tenant
    value_to_metric: true
    descriptors:
      - {key: route, rate_limit: {unit: year, requests_per_unit: 1, name: per-route}}
  - {key: host, detailed_metric: true, rate_limit: {unit: year, requests_per_unit: 9}}
  - {key: doc, value: d*, value_to_metric: true, rate_limit: {unit: year, requests_per_unit: 9}}
  - {key: img, value: i*, value_to_metric: true, share_threshold: true, rate_limit: {unit: year, requests_per_unit: 9}}
  - {key: q1, quota_mode: true, metadata: {backend: one}, rate_limit: {unit: year, requests_per_unit: 1}}
  - {key: q2, quota_mode: true, rate_limit: {unit: year, requests_per_unit: 2}}
";

/// A server process with limits for Envoy.
struct RateLimitServer {
    process: ServeProcess,
    folder: TempDir,
}

impl RateLimitServer {
    fn start(options: &[&str]) -> Self {
        Self::with_limits(LIMITS, options)
    }

    fn with_limits(limits: &str, options: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("shop.yaml"), limits).unwrap();
        let mut command = slidegate();
        command.args(["serve", "--http", "127.0.0.1:0", "--envoy-config"]).arg(folder.path()).args(options);
        Self { process: ServeProcess::start(&mut command), folder }
    }

    fn post(&self, request: &Value) -> Response {
        self.process.post("/json", request)
    }

    /// Sends one request for all `descriptors` and returns the response.
    fn check(&self, descriptors: &Value) -> Value {
        self.post(&json!({"domain": "shop", "descriptors": descriptors})).json()
    }

    /// Sends a request for one descriptor and returns its status.
    fn status(&self, entries: &[(&str, &str)]) -> Value {
        self.check(&json!([descriptor(entries)]))["statuses"][0].clone()
    }
}

#[test]
fn the_startup_output_names_the_domains() {
    let server = RateLimitServer::start(&[]);
    let line = server.process.startup_lines.iter().find_map(|line| line.strip_prefix("envoy: ")).unwrap();
    assert_eq!(line, format!("domain shop from {}", server.folder.path().display()));
}

/// A misspelled domain has no limits, so the log names it.
#[test]
fn a_domain_without_limits_is_logged_once() {
    let (folder, log) = (tempfile::tempdir().unwrap(), tempfile::NamedTempFile::new().unwrap());
    fs::write(folder.path().join("shop.yaml"), LIMITS).unwrap();
    let mut command = slidegate();
    command.args(["serve", "--http", "127.0.0.1:0", "--envoy-config"]).arg(folder.path());
    let mut server = ServeProcess::start_with_log(&mut command, log.reopen().unwrap().into());
    for domain in ["shop", "shpo", "shpo", "sohp"] {
        let request = json!({"domain": domain, "descriptors": [descriptor(&[("user", "a")])]});
        assert_eq!(server.post("/json", &request).status, 200, "{domain}");
    }
    server.signal_and_wait("TERM");
    let logged = fs::read_to_string(log.path()).unwrap();
    let warnings: Vec<&str> = logged
        .lines()
        .filter(|line| line.contains("the domain of a request from Envoy has no limits"))
        .collect();
    assert!(
        warnings.len() == 1 && warnings[0].contains("shpo") && warnings[0].contains("known=\"shop\""),
        "{logged}"
    );
}

fn descriptor(entries: &[(&str, &str)]) -> Value {
    json!({"entries": entries.iter().map(|(key, value)| json!({"key": key, "value": value})).collect::<Vec<_>>()})
}

fn until(condition: &str, is_met: impl Fn() -> bool) {
    slidegate_testkit::until(condition, || if is_met() { Ok(()) } else { Err("not yet".to_owned()) });
}

fn limit_name(status: &Value) -> &str {
    status["currentLimit"]["name"].as_str().unwrap_or_default()
}

#[test]
fn each_value_of_a_bare_key_has_its_own_count() {
    let server = RateLimitServer::start(&[]);
    for remaining in [json!(1), Value::Null] {
        let status = server.status(&[("user", "a")]);
        assert_eq!((&status["code"], &status["limitRemaining"]), (&json!("OK"), &remaining), "{status}");
        let limit = json!({"requestsPerUnit": 2, "unit": "YEAR", "name": "per-user"});
        assert_eq!(status["currentLimit"], limit);
        assert!(status["durationUntilReset"].as_str().unwrap().ends_with('s'));
    }
    assert_eq!(server.status(&[("user", "a")])["code"], "OVER_LIMIT");
    assert_eq!(server.status(&[("user", "b")])["limitRemaining"], 1);
    let nested = server.status(&[("user", "a"), ("path", "/")]);
    assert_eq!((&nested["code"], &nested["currentLimit"]["unit"]), (&json!("OK"), &json!("WEEK")));
}

#[test]
fn exact_values_take_precedence_over_wildcards_and_wildcards_over_bare_keys() {
    let server = RateLimitServer::start(&[]);
    for (value, expected) in
        [("/a/bc", "exact"), ("/a/bd", "first"), ("/a/", "first"), ("/c", "bare"), ("", "bare")]
    {
        assert_eq!(limit_name(&server.status(&[("path", value)])), expected, "{value}");
    }
    let unmatched: [&[(&str, &str)]; 4] =
        [&[("unknown", "")], &[("path", "/c"), ("more", "x")], &[("user", "vip"), ("path", "/")], &[]];
    for entries in unmatched {
        assert_eq!(server.status(entries), json!({"code": "OK"}), "{entries:?}");
    }
    let other_domain = json!({"domain": "other", "descriptors": [descriptor(&[("user", "a")])]});
    assert_eq!(server.post(&other_domain).json(), json!({"overallCode": "OK", "statuses": [{"code": "OK"}]}));
}

#[test]
fn wildcard_matches_are_counted_by_value_unless_the_threshold_is_shared() {
    let server = RateLimitServer::start(&[]);
    assert_eq!(server.status(&[("path", "/a/1")])["code"], "OK");
    assert_eq!(server.status(&[("path", "/a/1")])["code"], "OVER_LIMIT");
    assert_eq!(server.status(&[("path", "/a/2")])["code"], "OK");
    let codes = ["f1", "f2", "f3"].map(|value| server.status(&[("file", value)])["code"].clone());
    assert_eq!(codes, ["OK", "OK", "OVER_LIMIT"]);
}

#[test]
fn unlimited_values_are_allowed_banned_ones_denied_and_replaced_limits_not_counted() {
    let server = RateLimitServer::start(&[]);
    assert_eq!(server.status(&[("user", "vip")]), json!({"code": "OK", "limitRemaining": u32::MAX}));
    let banned = server.check(&json!([descriptor(&[("user", "banned")])]));
    assert_eq!(banned["overallCode"], "OVER_LIMIT");
    assert_eq!(banned["statuses"][0]["currentLimit"], json!({"unit": "MONTH", "name": "ban"}));
    let all = descriptor(&[("all", "")]);
    for _ in 0..3 {
        let response = server.check(&json!([all, descriptor(&[("user", "vip")])]));
        assert_eq!(response["statuses"], json!([{"code": "OK"}, {"code": "OK", "limitRemaining": u32::MAX}]));
    }
    assert_eq!(server.status(&[("all", "")])["code"], "OK", "a replaced limit is not counted");
    assert_eq!(server.status(&[("all", "")])["code"], "OVER_LIMIT");
}

#[test]
fn descriptors_of_one_request_are_decided_independently() {
    let server = RateLimitServer::start(&[]);
    assert_eq!(server.status(&[("all", "")])["code"], "OK");
    let descriptors =
        json!([descriptor(&[("user", "c")]), descriptor(&[("all", "")]), descriptor(&[("unknown", "")])]);
    let response = server.check(&descriptors);
    assert_eq!(response["overallCode"], "OVER_LIMIT");
    let codes: Vec<_> =
        response["statuses"].as_array().unwrap().iter().map(|status| &status["code"]).collect();
    assert_eq!(codes, ["OK", "OVER_LIMIT", "OK"]);
    let user = server.status(&[("user", "c")]);
    assert_eq!(user["code"], "OK");
    assert_eq!(user["limitRemaining"], Value::Null, "the descriptor below its limit was counted");
}

#[test]
fn hits_addend_checks_peeks_reports_and_refunds() {
    let server = RateLimitServer::start(&[]);
    let with = |more: Value| {
        let mut descriptor = descriptor(&[("user", "h")]);
        descriptor.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        server.check(&json!([descriptor]))["statuses"][0].clone()
    };
    assert_eq!(with(json!({"hitsAddend": 0}))["limitRemaining"], 2, "a peek spends nothing");
    assert_eq!(with(json!({"hits_addend": "2"}))["code"], "OK");
    assert_eq!(with(json!({"hitsAddend": 0}))["code"], "OK", "the limit is reached but not exceeded");
    assert_eq!(with(json!({}))["code"], "OVER_LIMIT", "no quota remains for a check");
    assert_eq!(with(json!({"hitsAddend": 3}))["code"], "OVER_LIMIT");
    assert_eq!(with(json!({"hitsAddend": 0}))["code"], "OVER_LIMIT", "reported hits count beyond the limit");
    assert_eq!(with(json!({"hitsAddend": 4, "isNegativeHits": true}))["limitRemaining"], 1);
    let request = json!({"domain": "shop", "hitsAddend": 2, "descriptors": [descriptor(&[("user", "h")])]});
    assert_eq!(server.post(&request).status, 429, "2 hits exceed the remaining 1");
    assert_eq!(with(json!({}))["code"], "OK", "a denial costs nothing");
}

#[test]
fn null_fields_count_as_missing_and_integral_floats_are_accepted() {
    let server = RateLimitServer::start(&[]);
    let request = json!({
        "domain": "shop", "hitsAddend": 2.0,
        "descriptors": [
            {"entries": [{"key": "user", "value": null}], "limit": null, "hitsAddend": null, "isNegativeHits": null},
            {"entries": null},
        ],
    });
    let statuses = server.post(&request).json()["statuses"].clone();
    assert_eq!((&statuses[0]["code"], &statuses[0]["limitRemaining"]), (&json!("OK"), &Value::Null));
    assert_eq!(statuses[1], json!({"code": "OK"}));
    let rejection = server.post(&json!({"domain": "shop", "descriptors": null}));
    assert_eq!(rejection.json()["detail"], "descriptors: 0 are given; 1 to 100 are allowed");
    for hits in [json!(1.5), json!(-1.0), json!(1e300)] {
        let rejection = server.post(&json!({"domain": "shop", "hitsAddend": hits}));
        assert_eq!(rejection.json()["detail"], "hitsAddend: expected a whole number of at least 0", "{hits}");
    }
}

#[test]
fn an_empty_window_ends_when_a_counted_one_does() {
    let server = RateLimitServer::start(&[]);
    let mut peek = descriptor(&[("user", "new")]);
    peek["hitsAddend"] = 0.into();
    let seconds = |descriptor: Value| -> i64 {
        let status = server.check(&json!([descriptor]))["statuses"][0].clone();
        status["durationUntilReset"].as_str().unwrap().trim_end_matches('s').parse().unwrap()
    };
    let (empty, counted) = (seconds(peek), seconds(descriptor(&[("user", "new")])));
    assert!(empty > 0 && (empty - counted).abs() < 3600, "{empty} and {counted}");
}

#[test]
fn the_limit_of_a_descriptor_overrides_the_configured_one() {
    let server = RateLimitServer::start(&[]);
    let with = |entries, limit: Value| {
        let mut descriptor = descriptor(entries);
        descriptor["limit"] = limit;
        server.post(&json!({"domain": "shop", "descriptors": [descriptor]}))
    };
    let limit = json!({"requestsPerUnit": 1, "unit": "YEAR"});
    let status = with(&[("user", "vip")], limit.clone()).json()["statuses"][0].clone();
    assert_eq!(status["currentLimit"], limit);
    assert_eq!(with(&[("user", "vip")], limit.clone()).status, 429);
    assert_eq!(with(&[("user", "v"), ("ip", "")], limit.clone()).status, 200);
    assert_eq!(with(&[("user", "x")], json!({"unit": 4})).status, 429, "a missing limit is 0");
    let rejection = with(&[("user", "x")], json!({"requests_per_unit": 1}));
    assert_eq!(rejection.status, 400);
    assert_eq!(
        rejection.json()["detail"],
        "descriptors[0].limit.unit: 0 is not one of 1 (SECOND) to 6 (YEAR)"
    );
}

#[test]
fn a_shadow_limit_never_denies_and_its_decisions_have_their_own_outcome() {
    let server = RateLimitServer::start(&[]);
    for _ in 0..3 {
        assert_eq!(server.check(&json!([descriptor(&[("soft", "s")])]))["overallCode"], "OK");
    }
    let metrics = server.process.get("/metrics").body;
    for (outcome, count) in [("allowed", 1), ("shadow", 2), ("denied", 0)] {
        let line = format!(
            "slidegate_decisions_total{{policy=\"shop.soft\",tier=\"\",source=\"store\",outcome=\"{outcome}\"}} {count}"
        );
        assert!(metrics.lines().any(|found| found == line), "{line} is not in {metrics}");
    }
}

#[test]
fn policy_labels_contain_values_only_where_the_file_enables_it() {
    let server = RateLimitServer::start(&[]);
    for entries in [
        &[("tenant", "a"), ("route", "/x")][..],
        &[("tenant", "a"), ("route", "/x")],
        &[("tenant", "a"), ("route", "/y")],
        &[("tenant", "b"), ("route", "/x")],
        &[("host", "h1")],
        &[("host", "h\n\"2")],
        &[("doc", "d1")],
        &[("img", "i1")],
        &[("img", "i2")],
        &[("tenant", ""), ("route", "/z")],
        &[("user", "vip")],
        &[("user", "banned")],
    ] {
        server.status(entries);
    }
    let metrics = server.process.get("/metrics").body;
    let decisions = |policy: &str| -> Vec<u64> {
        let count = |outcome: &str| {
            let line = format!(
                "slidegate_decisions_total{{policy=\"{policy}\",tier=\"\",source=\"store\",outcome=\"{outcome}\"}} "
            );
            metrics.lines().find_map(|found| found.strip_prefix(&line)?.parse().ok())
        };
        ["allowed", "denied"].into_iter().filter_map(count).collect()
    };
    assert_eq!(decisions("shop.tenant_a.route"), [2, 1], "{metrics}");
    assert_eq!(decisions("shop.tenant_b.route"), [1, 0]);
    assert_eq!(decisions("shop.tenant.route"), [1, 0], "an empty value is left out of the label");
    assert_eq!(decisions("shop.tenant_.route"), [0; 0]);
    let by_rule = |policy: &str, outcome: &str| {
        let line = format!(
            "slidegate_decisions_total{{policy=\"{policy}\",tier=\"\",source=\"rule\",outcome=\"{outcome}\"}} 1"
        );
        assert!(metrics.lines().any(|found| found == line), "{line} is not in {metrics}");
    };
    by_rule("shop.user_vip", "allowed");
    by_rule("shop.user_banned", "denied");
    assert_eq!(decisions("shop.host_h1"), [1, 0]);
    assert_eq!(decisions("shop.doc_d1"), [1, 0]);
    assert_eq!(decisions("shop.img_i*"), [2, 0], "values with a shared threshold share a label");
    assert_eq!(decisions("shop.img_i1"), [0; 0]);
    let violated = "slidegate_violations_total{policy=\"shop.tenant_a.route\",tier=\"\",quota=\"\"} 1";
    assert!(metrics.lines().any(|found| found == violated), "{metrics}");
    let control = metrics.lines().find(|line| line.contains("policy=\"shop.host_h?"));
    assert!(control.is_some_and(|line| line.contains("h?\\\"2#")), "no control characters: {metrics}");
}

#[test]
fn quota_mode_denies_when_every_quota_is_exceeded() {
    let server = RateLimitServer::start(&[]);
    let descriptors = json!([descriptor(&[("q1", "")]), descriptor(&[("q2", "x")])]);
    let first = server.check(&descriptors);
    let metadata = |more: Value| {
        let mut metadata =
            json!({"domain": "shop", "descriptors": [{"entries": ["q1="]}, {"entries": ["q2=x"]}]});
        metadata.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        metadata
    };
    assert_eq!(first["overallCode"], "OK");
    assert_eq!(first["dynamicMetadata"], metadata(json!({"metadata": {"backend": "one"}})));
    let second = server.check(&descriptors);
    assert_eq!(second["overallCode"], "OK");
    assert_eq!(second["dynamicMetadata"], metadata(json!({})));
    assert_eq!(server.check(&descriptors)["overallCode"], "OVER_LIMIT");
}

/// Other filters of Envoy route by the metadata.
#[test]
fn metadata_of_limits_that_are_not_reached_is_merged_and_the_first_value_wins() {
    let limit = "rate_limit: {unit: year, requests_per_unit: 1}";
    let server = RateLimitServer::with_limits(
        &format!(
            "domain: shop\ndescriptors:\n  \
             - {{key: a, metadata: {{name: a, list: [1], of: {{x: 1, z: {{p: 1}}}}}}, {limit}}}\n  \
             - {{key: b, metadata: {{name: b, list: [2], of: {{x: 2, y: 2, z: {{q: 2}}}}, other: true}}, {limit}}}\n  \
             - {{key: c, metadata: {{of: 3}}, {limit}}}\n  - {{key: plain, {limit}}}\n"
        ),
        &[],
    );
    let mut peek = descriptor(&[("a", "")]);
    peek["hitsAddend"] = 0.into();
    let descriptors = json!([peek, descriptor(&[("b", "1")]), descriptor(&[("c", "")])]);
    let first = server.check(&descriptors)["dynamicMetadata"].clone();
    let of = json!({"x": 1, "y": 2, "z": {"p": 1, "q": 2}});
    let merged = json!({"name": "a", "list": [1], "of": of, "other": true});
    let entries = json!([{"entries": ["a="], "hitsAddend": 0}, {"entries": ["b=1"]}, {"entries": ["c="]}]);
    assert_eq!(first, json!({"domain": "shop", "descriptors": entries, "metadata": merged}));
    let second = server.check(&json!([descriptor(&[("b", "1")]), descriptor(&[("a", "")])]));
    assert_eq!(second["dynamicMetadata"]["metadata"]["name"], "a", "a reached limit adds no metadata");
    assert_eq!(server.check(&json!([descriptor(&[("plain", "")])]))["dynamicMetadata"], Value::Null);
}

#[test]
fn a_denial_has_rate_limit_headers_and_a_body_unless_they_are_off() {
    let descriptors = json!([descriptor(&[("all", "")]), descriptor(&[("user", "a")])]);
    let server = RateLimitServer::start(&[]);
    assert_eq!(server.check(&descriptors)["responseHeadersToAdd"], Value::Null);
    let denied = server.check(&descriptors);
    let headers = denied["responseHeadersToAdd"].as_array().unwrap();
    let header =
        |name: &str| headers.iter().find(|header| header["key"] == name).unwrap()["value"].as_str().unwrap();
    let policy = r#""global";q=1;w=31536000, "per-user";q=2;w=31536000"#;
    assert_eq!(header("ratelimit-policy"), policy);
    assert!(header("ratelimit").starts_with(r#""global";r=0;t="#), "{}", header("ratelimit"));
    assert!(header("retry-after").parse::<u64>().unwrap() > 0);
    assert_eq!(header("content-type"), "text/plain; charset=utf-8");
    let body = |denied: &Value| {
        String::from_utf8(BASE64_STANDARD.decode(denied["rawBody"].as_str().unwrap()).unwrap()).unwrap()
    };
    let sentence = body(&denied);
    assert!(sentence.starts_with("rate limit exceeded: global; retry in "), "{sentence}");
    assert!(sentence.ends_with(" seconds"), "{sentence}");
    let problem = RateLimitServer::start(&["--envoy-body", "problem"]);
    problem.check(&descriptors);
    let denied = problem.check(&descriptors);
    let document: Value = serde_json::from_str(&body(&denied)).unwrap();
    assert_eq!(document["violated-policies"], json!(["global"]));
    let headers = denied["responseHeadersToAdd"].as_array().unwrap();
    assert!(
        headers.contains(&json!({"key": "content-type", "value": "application/problem+json"})),
        "{denied}"
    );

    let always =
        RateLimitServer::start(&["--envoy-headers", "always", "--envoy-algorithm", "sliding-window"]);
    let allowed = always.check(&descriptors);
    assert_eq!(allowed["responseHeadersToAdd"][0]["value"], policy);
    assert_eq!(allowed["rawBody"], Value::Null);

    let silent = RateLimitServer::start(&["--envoy-headers", "off", "--envoy-body", "false"]);
    silent.check(&descriptors);
    let denied = silent.check(&descriptors);
    assert_eq!(denied["overallCode"], "OVER_LIMIT");
    assert_eq!((&denied["responseHeadersToAdd"], &denied["rawBody"]), (&Value::Null, &Value::Null));
}

/// Returns the policies in the header and those in the body of a denial.
fn named_policies(denied: &Value) -> (String, Value) {
    let headers = denied["responseHeadersToAdd"].as_array().unwrap();
    let policy = headers.iter().find(|header| header["key"] == "ratelimit-policy").unwrap();
    let body = BASE64_STANDARD.decode(denied["rawBody"].as_str().unwrap()).unwrap();
    let body: Value = serde_json::from_slice(&body).unwrap();
    (policy["value"].as_str().unwrap().to_owned(), body["violated-policies"].clone())
}

#[test]
fn headers_and_body_name_each_deciding_limit_once() {
    let server = RateLimitServer::start(&["--envoy-body", "problem"]);
    let global = r#""global";q=1;w=31536000"#;
    let descriptors = ["q1", "q2", "soft", "all"].map(|key| descriptor(&[(key, "")]));
    assert_eq!(server.check(&json!(descriptors))["overallCode"], "OK");
    let denied = named_policies(&server.check(&json!(descriptors)));
    assert_eq!(denied, (global.to_owned(), json!(["global"])), "one quota is not exceeded yet");
    let quotas = format!(r#""shop.q1";q=1;w=31536000, "shop.q2";q=2;w=31536000, {global}"#);
    let denied = named_policies(&server.check(&json!(descriptors)));
    assert_eq!(denied, (quotas, json!(["shop.q1", "shop.q2", "global"])));

    let twice = json!([descriptor(&[("user", "a")]), descriptor(&[("user", "a")])]);
    assert_eq!(server.check(&twice)["overallCode"], "OK");
    let per_user = r#""per-user";q=2;w=31536000"#.to_owned();
    assert_eq!(named_policies(&server.check(&twice)), (per_user, json!(["per-user"])));
}

#[test]
fn malformed_requests_are_rejected() {
    let server = RateLimitServer::start(&[]);
    let many = vec![descriptor(&[("a", "b")]); 101];
    for (request, detail) in [
        (json!({"descriptors": [{}]}), "domain: must not be empty"),
        (json!({"domain": "shop"}), "descriptors: 0 are given; 1 to 100 are allowed"),
        (json!({"domain": "shop", "descriptors": many}), "descriptors: 101 are given; 1 to 100 are allowed"),
        (
            json!({"domain": "shop", "descriptors": [{"hitsAddend": (1_u64 << 48) + 1}]}),
            "descriptors[0].hits_addend: 281474976710657 is not between 0 and 281474976710656",
        ),
        (json!({"domain": "shop", "hitsAddend": -1}), "hitsAddend: expected a whole number of at least 0"),
        // An array of a message's field values is not that message.
        (json!(["shop", [{}], 1]), "invalid type: sequence, expected an object"),
        (
            json!({"domain": "shop", "descriptors": [[[], null]]}),
            "descriptors[0]: invalid type: sequence, expected an object",
        ),
        (
            json!({"domain": "shop", "descriptors": [{"entries": [["a", "b"]]}]}),
            "descriptors[0].entries[0]: invalid type: sequence, expected an object",
        ),
        (
            json!({"domain": "shop", "descriptors": [{"limit": [1, "DAY"]}]}),
            "descriptors[0].limit: invalid type: sequence, expected an object",
        ),
    ] {
        let response = server.post(&request);
        assert_eq!((response.status, response.json()["detail"].as_str()), (400, Some(detail)), "{request}");
    }
    assert_eq!(server.process.get("/json").status, 405);
    let health = server.process.get("/healthcheck");
    assert_eq!((health.status, health.body.as_str()), (200, "OK"));
}

#[test]
fn a_constantly_changing_folder_is_reloaded_with_a_warning() {
    let log = tempfile::NamedTempFile::new().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let write = |requests: u32| {
        let rate = format!("{{unit: year, requests_per_unit: {requests}}}");
        let next = folder.path().join("next");
        fs::write(&next, format!("domain: a\ndescriptors: [{{key: k, rate_limit: {rate}}}]\n")).unwrap();
        fs::rename(next, folder.path().join("a.yaml")).unwrap();
    };
    write(1);
    let mut command = slidegate();
    command.args(["serve", "--http", "127.0.0.1:0", "--envoy-config"]).arg(folder.path());
    let server = ServeProcess::start_with_log(&mut command, Stdio::from(log.reopen().unwrap()));
    let request = json!({"domain": "a", "descriptors": [descriptor(&[("k", "v")])]});
    slidegate_testkit::until("the limits are reloaded", || {
        (0..100).for_each(|_| write(3));
        let logged = fs::read_to_string(log.path()).unwrap();
        let warning = logged.find("although it keeps changing").ok_or("no warning")?;
        logged[warning..].find("reloaded the limits for Envoy").map(drop).ok_or(logged)
    });
    let status = &server.post("/json", &request).json()["statuses"][0];
    assert_eq!(status["currentLimit"]["requestsPerUnit"], 3);
}

#[test]
fn changed_files_are_reloaded_and_an_invalid_file_keeps_the_old_limits() {
    let log = tempfile::NamedTempFile::new().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let write = |text: &str| {
        let next = folder.path().join("next");
        fs::write(&next, text).unwrap();
        fs::rename(next, folder.path().join("a.yaml")).unwrap();
    };
    let limit = |requests: u32| {
        format!(
            "domain: a\ndescriptors: [{{key: k, rate_limit: {{unit: year, requests_per_unit: {requests}}}}}]\n"
        )
    };
    write(&limit(1));
    let mut command = slidegate();
    command.args(["serve", "--http", "127.0.0.1:0", "--envoy-config"]).arg(folder.path());
    let server = ServeProcess::start_with_log(&mut command, Stdio::from(log.reopen().unwrap()));
    let request = json!({"domain": "a", "descriptors": [descriptor(&[("k", "v")])]});
    assert_eq!(server.post("/json", &request).status, 200);
    assert_eq!(server.post("/json", &request).status, 429);

    write("domain: a\ndescriptors: [{key: k, rate_limit: {unit: eon}}]\n");
    let is_logged = || {
        let lines = BufReader::new(log.reopen().unwrap()).lines();
        lines.map_while(Result::ok).any(|line| line.contains("rate_limit.unit: \"eon\" is not one of"))
    };
    until("the error is logged", is_logged);
    assert_eq!(server.post("/json", &request).status, 429);

    write(&limit(3));
    let limit_now =
        || server.post("/json", &request).json()["statuses"][0]["currentLimit"]["requestsPerUnit"].clone();
    until("the limit changes", || limit_now() == 3);
    fs::write(folder.path().join("b.yaml"), limit(5).replace("domain: a", "domain: b")).unwrap();
    server.send_signal("HUP");
    let other = json!({"domain": "b", "descriptors": [descriptor(&[("k", "v")])]});
    let remaining = || server.post("/json", &other).json()["statuses"][0]["limitRemaining"].clone();
    until("the added file is loaded", || remaining() == 4);
}
