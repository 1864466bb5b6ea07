//! Envoy's rate limit service, asked as JSON: which limit a descriptor meets, and what is said of it.

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

/// Years, so that no window ends while a test runs.
pub(crate) const LIMITS: &str = "
domain: shop
descriptors:
  - key: user
    rate_limit: {unit: year, requests_per_unit: 2, name: per-user}
    descriptors:
      - {key: path, rate_limit: {unit: week, requests_per_unit: 1}}
  - {key: user, value: vip, rate_limit: {unlimited: true, replaces: [{name: everybody}]}}
  - {key: user, value: banned, rate_limit: {unit: month, requests_per_unit: 0, name: ban}}
  - {key: all, rate_limit: {unit: year, requests_per_unit: 1, name: everybody}}
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

struct Shop {
    server: ServeProcess,
    folder: TempDir,
}

impl Shop {
    fn open(options: &[&str]) -> Self {
        Self::with_limits(LIMITS, options)
    }

    fn with_limits(limits: &str, options: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("shop.yaml"), limits).unwrap();
        let mut command = slidegate();
        command.args(["serve", "--http", "127.0.0.1:0", "--envoy-config"]).arg(folder.path()).args(options);
        Self { server: ServeProcess::start(&mut command), folder }
    }

    fn post(&self, request: &Value) -> Response {
        self.server.post("/json", request)
    }

    fn ask(&self, descriptors: &Value) -> Value {
        self.post(&json!({"domain": "shop", "descriptors": descriptors})).json()
    }

    /// The status of a request for one descriptor.
    fn one(&self, entries: &[(&str, &str)]) -> Value {
        self.ask(&json!([descriptor(entries)]))["statuses"][0].clone()
    }
}

#[test]
fn the_greeting_names_the_domains() {
    let shop = Shop::open(&[]);
    let line = shop.server.startup_lines.iter().find_map(|line| line.strip_prefix("envoy: ")).unwrap();
    assert_eq!(line, format!("domain shop from {}", shop.folder.path().display()));
}

/// Whoever misspells a domain finds out why nothing is limited.
#[test]
fn a_domain_without_limits_is_told_once() {
    let (folder, log) = (tempfile::tempdir().unwrap(), tempfile::NamedTempFile::new().unwrap());
    fs::write(folder.path().join("shop.yaml"), LIMITS).unwrap();
    let mut command = slidegate();
    command.args(["serve", "--http", "127.0.0.1:0", "--envoy-config"]).arg(folder.path());
    let mut server = ServeProcess::start_with_log(&mut command, log.reopen().unwrap().into());
    for domain in ["shop", "shpo", "shpo", "sohp"] {
        let asked = json!({"domain": domain, "descriptors": [descriptor(&[("user", "a")])]});
        assert_eq!(server.post("/json", &asked).status, 200, "{domain}");
    }
    server.signal_and_wait("TERM");
    let logged = fs::read_to_string(log.path()).unwrap();
    let said: Vec<&str> = logged.lines().filter(|line| line.contains("a domain without limits")).collect();
    assert!(said.len() == 1 && said[0].contains("shpo") && said[0].contains("known=\"shop\""), "{logged}");
}

fn descriptor(entries: &[(&str, &str)]) -> Value {
    json!({"entries": entries.iter().map(|(key, value)| json!({"key": key, "value": value})).collect::<Vec<_>>()})
}

fn until(what: &str, holds: impl Fn() -> bool) {
    slidegate_testkit::until(what, || if holds() { Ok(()) } else { Err("not yet".to_owned()) });
}

fn name(status: &Value) -> &str {
    status["currentLimit"]["name"].as_str().unwrap_or_default()
}

#[test]
fn each_value_of_a_bare_key_is_counted_by_itself() {
    let shop = Shop::open(&[]);
    for remaining in [json!(1), Value::Null] {
        let status = shop.one(&[("user", "a")]);
        assert_eq!((&status["code"], &status["limitRemaining"]), (&json!("OK"), &remaining), "{status}");
        let limit = json!({"requestsPerUnit": 2, "unit": "YEAR", "name": "per-user"});
        assert_eq!(status["currentLimit"], limit);
        assert!(status["durationUntilReset"].as_str().unwrap().ends_with('s'));
    }
    assert_eq!(shop.one(&[("user", "a")])["code"], "OVER_LIMIT");
    assert_eq!(shop.one(&[("user", "b")])["limitRemaining"], 1);
    let deeper = shop.one(&[("user", "a"), ("path", "/")]);
    assert_eq!((&deeper["code"], &deeper["currentLimit"]["unit"]), (&json!("OK"), &json!("WEEK")));
}

#[test]
fn the_exact_value_goes_before_wildcards_and_these_before_the_bare_key() {
    let shop = Shop::open(&[]);
    for (value, expected) in
        [("/a/bc", "exact"), ("/a/bd", "first"), ("/a/", "first"), ("/c", "bare"), ("", "bare")]
    {
        assert_eq!(name(&shop.one(&[("path", value)])), expected, "{value}");
    }
    let unmatched: [&[(&str, &str)]; 4] =
        [&[("nobody", "")], &[("path", "/c"), ("more", "x")], &[("user", "vip"), ("path", "/")], &[]];
    for entries in unmatched {
        assert_eq!(shop.one(entries), json!({"code": "OK"}), "{entries:?}");
    }
    let elsewhere = json!({"domain": "elsewhere", "descriptors": [descriptor(&[("user", "a")])]});
    assert_eq!(shop.post(&elsewhere).json(), json!({"overallCode": "OK", "statuses": [{"code": "OK"}]}));
}

#[test]
fn wildcards_are_counted_by_value_unless_they_share() {
    let shop = Shop::open(&[]);
    assert_eq!(shop.one(&[("path", "/a/1")])["code"], "OK");
    assert_eq!(shop.one(&[("path", "/a/1")])["code"], "OVER_LIMIT");
    assert_eq!(shop.one(&[("path", "/a/2")])["code"], "OK");
    let codes = ["f1", "f2", "f3"].map(|value| shop.one(&[("file", value)])["code"].clone());
    assert_eq!(codes, ["OK", "OK", "OVER_LIMIT"]);
}

#[test]
fn unlimited_banned_and_replaced() {
    let shop = Shop::open(&[]);
    assert_eq!(shop.one(&[("user", "vip")]), json!({"code": "OK", "limitRemaining": u32::MAX}));
    let banned = shop.ask(&json!([descriptor(&[("user", "banned")])]));
    assert_eq!(banned["overallCode"], "OVER_LIMIT");
    assert_eq!(banned["statuses"][0]["currentLimit"], json!({"unit": "MONTH", "name": "ban"}));
    let all = descriptor(&[("all", "")]);
    for _ in 0..3 {
        let answer = shop.ask(&json!([all, descriptor(&[("user", "vip")])]));
        assert_eq!(answer["statuses"], json!([{"code": "OK"}, {"code": "OK", "limitRemaining": u32::MAX}]));
    }
    assert_eq!(shop.one(&[("all", "")])["code"], "OK", "what is replaced is not counted");
    assert_eq!(shop.one(&[("all", "")])["code"], "OVER_LIMIT");
}

#[test]
fn each_descriptor_stands_for_itself() {
    let shop = Shop::open(&[]);
    assert_eq!(shop.one(&[("all", "")])["code"], "OK");
    let both =
        json!([descriptor(&[("user", "c")]), descriptor(&[("all", "")]), descriptor(&[("nobody", "")])]);
    let answer = shop.ask(&both);
    assert_eq!(answer["overallCode"], "OVER_LIMIT");
    let codes: Vec<_> = answer["statuses"].as_array().unwrap().iter().map(|status| &status["code"]).collect();
    assert_eq!(codes, ["OK", "OVER_LIMIT", "OK"]);
    let user = shop.one(&[("user", "c")]);
    assert_eq!(user["code"], "OK");
    assert_eq!(user["limitRemaining"], Value::Null, "the one that was not over was counted");
}

#[test]
fn hits_are_counted_looked_at_and_given_back() {
    let shop = Shop::open(&[]);
    let with = |more: Value| {
        let mut asked = descriptor(&[("user", "h")]);
        asked.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        shop.ask(&json!([asked]))["statuses"][0].clone()
    };
    assert_eq!(with(json!({"hitsAddend": 0}))["limitRemaining"], 2, "it only looks");
    assert_eq!(with(json!({"hits_addend": "2"}))["code"], "OK");
    assert_eq!(with(json!({"hitsAddend": 0}))["code"], "OK", "the limit is reached, and not exceeded");
    assert_eq!(with(json!({}))["code"], "OVER_LIMIT", "nothing is left for a request that asks");
    assert_eq!(with(json!({"hitsAddend": 3}))["code"], "OVER_LIMIT");
    assert_eq!(
        with(json!({"hitsAddend": 0}))["code"],
        "OVER_LIMIT",
        "what has happened counts beyond the limit"
    );
    assert_eq!(with(json!({"hitsAddend": 4, "isNegativeHits": true}))["limitRemaining"], 1);
    let asked = json!({"domain": "shop", "hitsAddend": 2, "descriptors": [descriptor(&[("user", "h")])]});
    assert_eq!(shop.post(&asked).status, 429, "two are more than the one that is left");
    assert_eq!(with(json!({}))["code"], "OK", "and a denial costs nothing");
}

#[test]
fn null_is_nothing_and_numbers_may_be_written_as_fractions() {
    let shop = Shop::open(&[]);
    let asked = json!({
        "domain": "shop", "hitsAddend": 2.0,
        "descriptors": [
            {"entries": [{"key": "user", "value": null}], "limit": null, "hitsAddend": null, "isNegativeHits": null},
            {"entries": null},
        ],
    });
    let statuses = shop.post(&asked).json()["statuses"].clone();
    assert_eq!((&statuses[0]["code"], &statuses[0]["limitRemaining"]), (&json!("OK"), &Value::Null));
    assert_eq!(statuses[1], json!({"code": "OK"}));
    let refused = shop.post(&json!({"domain": "shop", "descriptors": null}));
    assert_eq!(refused.json()["detail"], "descriptors: 0 are given; 1 to 100 are allowed");
    for hits in [json!(1.5), json!(-1.0), json!(1e300)] {
        let refused = shop.post(&json!({"domain": "shop", "hitsAddend": hits}));
        assert_eq!(refused.json()["detail"], "hitsAddend: expected a whole number of at least 0", "{hits}");
    }
}

#[test]
fn a_window_in_which_nothing_is_counted_ends_all_the_same() {
    let shop = Shop::open(&[]);
    let mut looks = descriptor(&[("user", "nobody")]);
    looks["hitsAddend"] = 0.into();
    let seconds = |asked: Value| -> i64 {
        let status = shop.ask(&json!([asked]))["statuses"][0].clone();
        status["durationUntilReset"].as_str().unwrap().trim_end_matches('s').parse().unwrap()
    };
    let (empty, counted) = (seconds(looks), seconds(descriptor(&[("user", "nobody")])));
    assert!(empty > 0 && (empty - counted).abs() < 3600, "{empty} and {counted}");
}

#[test]
fn a_limit_may_come_with_the_descriptor() {
    let shop = Shop::open(&[]);
    let with = |entries, limit: Value| {
        let mut asked = descriptor(entries);
        asked["limit"] = limit;
        shop.post(&json!({"domain": "shop", "descriptors": [asked]}))
    };
    let limit = json!({"requestsPerUnit": 1, "unit": "YEAR"});
    let status = with(&[("user", "vip")], limit.clone()).json()["statuses"][0].clone();
    assert_eq!(status["currentLimit"], limit);
    assert_eq!(with(&[("user", "vip")], limit.clone()).status, 429);
    assert_eq!(with(&[("user", "v"), ("ip", "")], limit.clone()).status, 200);
    assert_eq!(with(&[("user", "x")], json!({"unit": 4})).status, 429, "nothing is allowed");
    let refused = with(&[("user", "x")], json!({"requests_per_unit": 1}));
    assert_eq!(refused.status, 400);
    assert_eq!(refused.json()["detail"], "descriptors[0].limit.unit: 0 is not one of 1 (SECOND) to 6 (YEAR)");
}

#[test]
fn a_shadow_denies_nobody_and_is_counted_apart() {
    let shop = Shop::open(&[]);
    for _ in 0..3 {
        assert_eq!(shop.ask(&json!([descriptor(&[("soft", "s")])]))["overallCode"], "OK");
    }
    let metrics = shop.server.get("/metrics").body;
    for (outcome, count) in [("allowed", 1), ("shadow", 2), ("denied", 0)] {
        let line = format!(
            "slidegate_decisions_total{{policy=\"shop.soft\",tier=\"\",source=\"store\",outcome=\"{outcome}\"}} {count}"
        );
        assert!(metrics.lines().any(|found| found == line), "{line} is not in {metrics}");
    }
}

/// Which values stand in the names of metrics is for the file to say.
#[test]
fn values_are_counted_apart_where_the_file_says_so() {
    let shop = Shop::open(&[]);
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
        shop.one(entries);
    }
    let metrics = shop.server.get("/metrics").body;
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
    assert_eq!(decisions("shop.tenant.route"), [1, 0], "an empty value is called by its key");
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
    assert_eq!(decisions("shop.img_i*"), [2, 0], "those that are counted together are told together");
    assert_eq!(decisions("shop.img_i1"), [0; 0]);
    let violated = "slidegate_violations_total{policy=\"shop.tenant_a.route\",tier=\"\",quota=\"\"} 1";
    assert!(metrics.lines().any(|found| found == violated), "{metrics}");
    let strange = metrics.lines().find(|line| line.contains("policy=\"shop.host_h?"));
    assert!(strange.is_some_and(|line| line.contains("h?\\\"2#")), "no control characters: {metrics}");
}

#[test]
fn quota_mode_denies_when_all_of_its_kind_are_over() {
    let shop = Shop::open(&[]);
    let asked = json!([descriptor(&[("q1", "")]), descriptor(&[("q2", "x")])]);
    let first = shop.ask(&asked);
    let about = |more: Value| {
        let mut about =
            json!({"domain": "shop", "descriptors": [{"entries": ["q1="]}, {"entries": ["q2=x"]}]});
        about.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        about
    };
    assert_eq!(first["overallCode"], "OK");
    assert_eq!(first["dynamicMetadata"], about(json!({"metadata": {"backend": "one"}})));
    let second = shop.ask(&asked);
    assert_eq!(second["overallCode"], "OK");
    assert_eq!(second["dynamicMetadata"], about(json!({})));
    assert_eq!(shop.ask(&asked)["overallCode"], "OVER_LIMIT");
}

/// Other filters route by it: what the first limit with something left says stands.
#[test]
fn metadata_of_limits_that_are_not_reached_is_merged_and_the_first_wins() {
    let limit = "rate_limit: {unit: year, requests_per_unit: 1}";
    let shop = Shop::with_limits(
        &format!(
            "domain: shop\ndescriptors:\n  \
             - {{key: a, metadata: {{name: a, list: [1], of: {{x: 1, z: {{p: 1}}}}}}, {limit}}}\n  \
             - {{key: b, metadata: {{name: b, list: [2], of: {{x: 2, y: 2, z: {{q: 2}}}}, other: true}}, {limit}}}\n  \
             - {{key: c, metadata: {{of: 3}}, {limit}}}\n  - {{key: plain, {limit}}}\n"
        ),
        &[],
    );
    let mut looks = descriptor(&[("a", "")]);
    looks["hitsAddend"] = 0.into();
    let asked = json!([looks, descriptor(&[("b", "1")]), descriptor(&[("c", "")])]);
    let first = shop.ask(&asked)["dynamicMetadata"].clone();
    let of = json!({"x": 1, "y": 2, "z": {"p": 1, "q": 2}});
    let merged = json!({"name": "a", "list": [1], "of": of, "other": true});
    let entries = json!([{"entries": ["a="], "hitsAddend": 0}, {"entries": ["b=1"]}, {"entries": ["c="]}]);
    assert_eq!(first, json!({"domain": "shop", "descriptors": entries, "metadata": merged}));
    let second = shop.ask(&json!([descriptor(&[("b", "1")]), descriptor(&[("a", "")])]));
    assert_eq!(second["dynamicMetadata"]["metadata"]["name"], "a", "what is reached says nothing");
    assert_eq!(shop.ask(&json!([descriptor(&[("plain", "")])]))["dynamicMetadata"], Value::Null);
}

#[test]
fn a_denial_says_why_and_for_how_long_unless_told_not_to() {
    let asked = json!([descriptor(&[("all", "")]), descriptor(&[("user", "a")])]);
    let shop = Shop::open(&[]);
    assert_eq!(shop.ask(&asked)["responseHeadersToAdd"], Value::Null);
    let denied = shop.ask(&asked);
    let headers = denied["responseHeadersToAdd"].as_array().unwrap();
    let header =
        |name: &str| headers.iter().find(|header| header["key"] == name).unwrap()["value"].as_str().unwrap();
    let policy = r#""everybody";q=1;w=31536000, "per-user";q=2;w=31536000"#;
    assert_eq!(header("ratelimit-policy"), policy);
    assert!(header("ratelimit").starts_with(r#""everybody";r=0;t="#), "{}", header("ratelimit"));
    assert!(header("retry-after").parse::<u64>().unwrap() > 0);
    assert_eq!(header("content-type"), "text/plain; charset=utf-8");
    let body = |denied: &Value| {
        String::from_utf8(BASE64_STANDARD.decode(denied["rawBody"].as_str().unwrap()).unwrap()).unwrap()
    };
    let sentence = body(&denied);
    assert!(sentence.starts_with("rate limit exceeded: everybody; retry in "), "{sentence}");
    assert!(sentence.ends_with(" seconds"), "{sentence}");
    let problem = Shop::open(&["--envoy-body", "problem"]);
    problem.ask(&asked);
    let denied = problem.ask(&asked);
    let document: Value = serde_json::from_str(&body(&denied)).unwrap();
    assert_eq!(document["violated-policies"], json!(["everybody"]));
    let headers = denied["responseHeadersToAdd"].as_array().unwrap();
    assert!(
        headers.contains(&json!({"key": "content-type", "value": "application/problem+json"})),
        "{denied}"
    );

    let always = Shop::open(&["--envoy-headers", "always", "--envoy-algorithm", "sliding-window"]);
    let allowed = always.ask(&asked);
    assert_eq!(allowed["responseHeadersToAdd"][0]["value"], policy);
    assert_eq!(allowed["rawBody"], Value::Null);

    let silent = Shop::open(&["--envoy-headers", "off", "--envoy-body", "false"]);
    silent.ask(&asked);
    let denied = silent.ask(&asked);
    assert_eq!(denied["overallCode"], "OVER_LIMIT");
    assert_eq!((&denied["responseHeadersToAdd"], &denied["rawBody"]), (&Value::Null, &Value::Null));
}

/// The policies of the header and those of the body.
fn told(denied: &Value) -> (String, Value) {
    let headers = denied["responseHeadersToAdd"].as_array().unwrap();
    let policy = headers.iter().find(|header| header["key"] == "ratelimit-policy").unwrap();
    let body = BASE64_STANDARD.decode(denied["rawBody"].as_str().unwrap()).unwrap();
    let body: Value = serde_json::from_slice(&body).unwrap();
    (policy["value"].as_str().unwrap().to_owned(), body["violated-policies"].clone())
}

#[test]
fn only_limits_that_have_a_say_are_told_and_each_once() {
    let shop = Shop::open(&["--envoy-body", "problem"]);
    let everybody = r#""everybody";q=1;w=31536000"#;
    let asked = ["q1", "q2", "soft", "all"].map(|key| descriptor(&[(key, "")]));
    assert_eq!(shop.ask(&json!(asked))["overallCode"], "OK");
    let denied = told(&shop.ask(&json!(asked)));
    assert_eq!(denied, (everybody.to_owned(), json!(["everybody"])), "one quota is not over yet");
    let quotas = format!(r#""shop.q1";q=1;w=31536000, "shop.q2";q=2;w=31536000, {everybody}"#);
    let denied = told(&shop.ask(&json!(asked)));
    assert_eq!(denied, (quotas, json!(["shop.q1", "shop.q2", "everybody"])));

    let twice = json!([descriptor(&[("user", "a")]), descriptor(&[("user", "a")])]);
    assert_eq!(shop.ask(&twice)["overallCode"], "OK");
    let per_user = r#""per-user";q=2;w=31536000"#.to_owned();
    assert_eq!(told(&shop.ask(&twice)), (per_user, json!(["per-user"])));
}

#[test]
fn what_cannot_be_understood_is_refused() {
    let shop = Shop::open(&[]);
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
        // No message is an array of its fields' values.
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
        let response = shop.post(&request);
        assert_eq!((response.status, response.json()["detail"].as_str()), (400, Some(detail)), "{request}");
    }
    assert_eq!(shop.server.get("/json").status, 405);
    let health = shop.server.get("/healthcheck");
    assert_eq!((health.status, health.body.as_str()), (200, "OK"));
}

#[test]
fn a_folder_that_never_rests_is_read_and_the_log_says_so() {
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
    let asked = json!({"domain": "a", "descriptors": [descriptor(&[("k", "v")])]});
    slidegate_testkit::until("the folder is read", || {
        (0..100).for_each(|_| write(3));
        let logged = fs::read_to_string(log.path()).unwrap();
        let warning = logged.find("although it keeps changing").ok_or("no warning")?;
        logged[warning..].find("reloaded the limits for Envoy").map(drop).ok_or(logged)
    });
    let status = &server.post("/json", &asked).json()["statuses"][0];
    assert_eq!(status["currentLimit"]["requestsPerUnit"], 3);
}

#[test]
fn files_that_change_are_read_again_and_mistakes_change_nothing() {
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
    let asked = json!({"domain": "a", "descriptors": [descriptor(&[("k", "v")])]});
    assert_eq!(server.post("/json", &asked).status, 200);
    assert_eq!(server.post("/json", &asked).status, 429);

    write("domain: a\ndescriptors: [{key: k, rate_limit: {unit: eon}}]\n");
    let is_said = || {
        let lines = BufReader::new(log.reopen().unwrap()).lines();
        lines.map_while(Result::ok).any(|line| line.contains("rate_limit.unit: \"eon\" is not one of"))
    };
    until("what is wrong is said", is_said);
    assert_eq!(server.post("/json", &asked).status, 429);

    write(&limit(3));
    let limit_now =
        || server.post("/json", &asked).json()["statuses"][0]["currentLimit"]["requestsPerUnit"].clone();
    until("the limit changes", || limit_now() == 3);
    fs::write(folder.path().join("b.yaml"), limit(5).replace("domain: a", "domain: b")).unwrap();
    server.send_signal("HUP");
    let other = json!({"domain": "b", "descriptors": [descriptor(&[("k", "v")])]});
    let remaining = || server.post("/json", &other).json()["statuses"][0]["limitRemaining"].clone();
    until("another file is read", || remaining() == 4);
}
