//! The admin API: changes of policies and keys, their persistence, the audit and authorization.

mod data_loss;
mod nodes;
mod policy_reset;

use std::net::SocketAddr;
use std::process::Command;

use serde_json::{Value, json};
use slidegate_testkit::until;

use crate::harness::{Response, request_with_headers};
use crate::process::{ServeProcess, TempFile, outcome, slidegate};

const POLICIES: &str = "
policies:
  api:
    quotas: [2/1h]
    tiers:
      premium: {quotas: [5/1h]}
  login:
    quotas: [{limit: 3, window: 1d, name: daily}]
";

fn serve(config: &TempFile, more: &[&str]) -> ServeProcess {
    ServeProcess::start(command(config).args(more))
}

fn command(config: &TempFile) -> Command {
    let mut command = slidegate();
    command.args(["serve", "--http", "127.0.0.1:0", "--config", config.path()]);
    command
}

fn admin_address(server: &ServeProcess) -> SocketAddr {
    let line = server.startup_lines.iter().find_map(|line| line.strip_prefix("admin: http://"));
    line.unwrap().parse().unwrap()
}

fn send(server: &ServeProcess, method: &str, path: &str, body: &Value) -> Response {
    send_with_token(server, "", method, path, body)
}

fn send_with_token(server: &ServeProcess, token: &str, method: &str, path: &str, body: &Value) -> Response {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let line = if token.is_empty() { String::new() } else { format!("authorization: Bearer {token}\r\n") };
    request_with_headers(admin_address(server), method, path, &line, body.as_bytes())
}

fn ok_json(response: &Response) -> Value {
    assert_eq!(response.status, 200, "{response:?}");
    response.json()
}

fn get(server: &ServeProcess, path: &str) -> Value {
    ok_json(&send(server, "GET", path, &Value::Null))
}

fn put(server: &ServeProcess, path: &str, body: &Value) -> Value {
    ok_json(&send(server, "PUT", path, body))
}

/// Returns the audit entries with this action, latest first.
fn audit_entries(server: &ServeProcess, action: &str) -> Vec<Value> {
    let entries = get(server, "/v1/audit")["audit"].as_array().unwrap().clone();
    entries.into_iter().filter(|entry| entry["action"] == action).collect()
}

fn until_expired(server: &ServeProcess, count: usize) -> Vec<Value> {
    until("the expiry is in the audit", || {
        let entries = audit_entries(server, "expire");
        if entries.len() >= count { Ok(entries) } else { Err(format!("{entries:?}")) }
    })
}

fn limit(server: &ServeProcess, key: &str) -> Value {
    let peeked = request_with_headers(
        server.url().strip_prefix("http://").unwrap().parse().unwrap(),
        "POST",
        "/v1/peek",
        "",
        json!({"policy": "api", "key": key}).to_string().as_bytes(),
    );
    peeked.decision()["limit"].clone()
}

/// Waits until a change of another node has set the limit of a key.
fn until_limit(server: &ServeProcess, key: &str, expected: u64) {
    until("the limit set by another node", || {
        let seen = limit(server, key);
        if seen == json!(expected) { Ok(()) } else { Err(seen.to_string()) }
    });
}

#[test]
fn policies_are_listed_with_changes_and_live_numbers() {
    let config = TempFile::new("listed", POLICIES);
    let server = serve(&config, &[]);
    for _ in 0..3 {
        server.check(&json!({"policy": "api", "key": "a"})).decision();
    }
    put(&server, "/v1/policies/login/mode", &json!({"mode": "shadow", "note": "ticket 7"}));
    let listed = get(&server, "/v1/policies");
    let [api, login] = listed.as_array().unwrap().as_slice() else { panic!("{listed}") };
    assert_eq!((&api["name"], &api["mode"]), (&json!("api"), &json!("enforce")));
    assert_eq!((&api["quotas"], &api["tiers"]), (&json!(["2/1h"]), &json!({"premium": ["5/1h"]})));
    let live = json!({"allowed": 2, "denied": 1, "shadow": 0, "fallback": 0, "denied_percent": 100.0 / 3.0});
    assert_eq!((&api["since_start"], &api["last_minute"], &api["advice"]), (&live, &live, &Value::Null));
    assert_eq!((&login["mode"], &login["changes"][0]["note"]), (&json!("shadow"), &json!("ticket 7")));
    assert_eq!(get(&server, "/v1/policies/login")["mode"], "shadow");
    // Heavy hitters are exact while there are few keys, and appear without delay.
    let live = get(&server, "/v1/live");
    let hitter = |count| json!([{"policy": "api", "key": "a", "count": count, "error": 0}]);
    assert_eq!((&live["busiest"], &live["most_denied"]), (&hitter(3), &hitter(1)));
    assert_eq!(live["policies"][0]["since_start"]["denied"], 1);
}

#[test]
fn a_changed_limit_applies_at_once_and_can_be_removed() {
    let config = TempFile::new("limit", POLICIES);
    let server = serve(&config, &[]);
    let response = put(&server, "/v1/policies/api/quotas", &json!({"quotas": ["7/1h"]}));
    let quotas = |quota: &str| json!({"quotas": [quota]});
    assert_eq!((&response["before"], &response["after"]), (&quotas("2/1h"), &quotas("7/1h")));
    assert_eq!(limit(&server, "a"), 7);
    put(&server, "/v1/policies/api/tiers/premium", &json!({"quotas": [{"limit": 70, "window": "1h"}]}));
    put(&server, "/v1/policies/api/keys/customer%3A42%2Feu", &json!({"quotas": ["1000/1h"], "for": "3d"}));
    put(&server, "/v1/policies/api/keys/partner", &json!({"tier": "premium", "until": "2030-01-01"}));
    assert_eq!((limit(&server, "customer:42/eu"), limit(&server, "partner")), (json!(1000), json!(70)));
    // A change of the same key replaces the previous one.
    put(&server, "/v1/policies/api/keys/partner", &json!({"quotas": ["9/1h"]}));
    assert_eq!((limit(&server, "partner"), limit(&server, "a")), (json!(9), json!(7)));
    let changes = get(&server, "/v1/changes");
    assert_eq!(changes["changes"].as_array().unwrap().len(), 4);

    for path in ["quotas", "tiers/premium", "keys/customer:42%2Feu", "keys/partner"] {
        let path = format!("/v1/policies/api/{path}");
        assert_eq!(ok_json(&send(&server, "DELETE", &path, &Value::Null))["action"], "remove");
        assert_eq!(send(&server, "DELETE", &path, &Value::Null).status, 404);
    }
    assert_eq!((limit(&server, "customer:42/eu"), limit(&server, "a")), (json!(2), json!(2)));
}

#[test]
fn a_longer_change_applies_again_when_a_shorter_one_expires() {
    let config = TempFile::new("layers", POLICIES);
    let server = serve(&config, &[]);
    let path = "/v1/policies/api/keys/customer";
    put(&server, path, &json!({"quotas": ["500/1h"]}));
    put(&server, path, &json!({"quotas": ["1000/1h"], "for": "200ms"}));
    until_limit(&server, "customer", 500);
    let set = audit_entries(&server, "set");
    assert_eq!(set[0]["before"], json!({"quotas": ["500/1h"]}));
    assert_eq!(set[1]["before"], Value::Null, "the file has no override for this key");
    // DELETE removes all changes of the key.
    put(&server, path, &json!({"quotas": ["1000/1h"], "for": "1h"}));
    assert_eq!(ok_json(&send(&server, "DELETE", path, &Value::Null))["before"]["quotas"], json!(["1000/1h"]));
    assert_eq!(limit(&server, "customer"), 2);
}

#[test]
fn a_policy_is_switched_off_and_on() {
    let config = TempFile::new("off", POLICIES);
    let server = serve(&config, &[]);
    let check = || server.check(&json!({"policy": "api", "key": "a", "cost": 3})).decision();
    assert_eq!(check()["allowed"], false);
    put(&server, "/v1/policies/api/mode", &json!({"mode": "off"}));
    assert_eq!((&check()["allowed"], &check()["source"]), (&json!(true), &json!("rule")));
    put(&server, "/v1/policies/api/mode", &json!({"mode": "shadow"}));
    assert_eq!((&check()["allowed"], &check()["shadow"]["allowed"]), (&json!(true), &json!(false)));
    ok_json(&send(&server, "DELETE", "/v1/policies/api/mode", &Value::Null));
    assert_eq!(check()["allowed"], false);
}

#[test]
fn key_inspection_refund_and_reset_are_audited() {
    let config = TempFile::new("key", POLICIES);
    let server = serve(&config, &[]);
    for _ in 0..3 {
        server.check(&json!({"policy": "login", "key": "a"})).decision();
    }
    let path = "/v1/policies/login/keys/a";
    let seen = get(&server, path);
    assert_eq!((&seen["key"], &seen["state"]["quotas"][0]["used"]), (&json!("a"), &json!(3)));
    assert_eq!(
        (&seen["mode"], &seen["always_denied"], &seen["change"]),
        (&json!("enforce"), &json!(false), &Value::Null)
    );
    let refunded =
        ok_json(&send(&server, "POST", &format!("{path}/refund"), &json!({"cost": 2, "note": "sorry"})));
    assert_eq!((&refunded["state"]["remaining"], &refunded["kept"]), (&json!(2), &json!(true)));
    ok_json(&send(&server, "POST", &format!("{path}/reset"), &Value::Null));
    assert_eq!(get(&server, path)["state"]["remaining"], 3);
    let audit = get(&server, "/v1/audit");
    let [reset, refund] = audit["audit"].as_array().unwrap().as_slice() else { panic!("{audit}") };
    let summary =
        |entry: &Value| json!([entry["action"], entry["by"], entry["before"], entry["after"], entry["note"]]);
    let used = |used| json!({"used": {"daily": used}});
    assert_eq!(summary(refund), json!(["refund", "(no token)", used(3), used(1), "sorry"]));
    assert_eq!(summary(reset), json!(["reset", "(no token)", used(1), used(0), null]));
}

#[test]
fn a_block_of_a_key_is_audited() {
    let config = TempFile::new("block", POLICIES);
    let server = serve(&config, &[]);
    let path = "/v1/policies/login/keys/a";
    server.check(&json!({"policy": "login", "key": "a"})).decision();
    let seen = get(&server, path);
    let quota = &seen["state"]["quotas"][0];
    assert_eq!(json!([quota["previous"], quota["current"], quota["oldest_age_ms"]]), json!([0, 1, null]));
    let blocked =
        ok_json(&send(&server, "POST", &format!("{path}/block"), &json!({"for": "1h", "note": "abuse"})));
    assert_eq!((&blocked["state"]["remaining"], &blocked["kept"]), (&json!(0), &json!(true)));
    let entry = &audit_entries(&server, "block")[0];
    assert_eq!(entry, &blocked["audit"]);
    assert_eq!((&entry["before"], &entry["note"]), (&json!({"used": {"daily": 1}}), &json!("abuse")));
    assert_eq!(entry["after"]["used"], json!({"daily": 1}));
    let [at, until] =
        [&entry["at"], &entry["after"]["blocked_until"]].map(|at| at.as_str().unwrap().to_owned());
    assert!(at < until, "{entry}");
    let denied = server.check(&json!({"policy": "login", "key": "a"})).decision();
    assert!(denied["retry_after_ms"].as_u64().unwrap() > 3_500_000, "{denied}");
    assert_eq!(get(&server, path)["state"]["allowed"], false);
    let reset = ok_json(&send(&server, "POST", &format!("{path}/reset"), &Value::Null));
    assert_eq!(reset["state"]["found"], true);
    assert_eq!(get(&server, path)["state"]["allowed"], true);
    for body in [
        json!({}),
        json!({"for": "soon"}),
        json!({"for": "0s"}),
        json!({"for": "367d"}),
        json!({"for": "1h", "cost": 1}),
    ] {
        let rejection = send(&server, "POST", &format!("{path}/block"), &body);
        assert_eq!(rejection.status, 422, "{body}: {rejection:?}");
    }
}

#[test]
fn invalid_changes_are_rejected_and_change_nothing() {
    let config = TempFile::new("nonsense", POLICIES);
    let server = serve(&config, &[]);
    let table = [
        ("quotas", json!({"quotas": ["5/0h"]}), 422, "quotas[0]"),
        ("quotas", json!({"quotas": []}), 422, "quotas"),
        ("quotas", json!({"mode": "off"}), 422, "mode"),
        ("quotas", json!({}), 422, "quotas"),
        ("quotas", json!({"quotas": ["5/1h"], "until": "friday"}), 422, "until"),
        ("quotas", json!({"quotas": ["5/1h"], "until": "2020-01-01"}), 422, "until"),
        ("quotas", json!({"quotas": ["5/1h"], "for": "1h", "until": "2030-01-01"}), 422, "until"),
        ("quotas", json!({"quotas": ["5/1h"], "for": "soon"}), 422, "for"),
        ("quotas", json!({"quotas": ["5/1h"], "why": "x"}), 422, "why"),
        ("quotas", json!({"quotas": ["5/1h"], "note": "x".repeat(501)}), 422, "note"),
        ("mode", json!({"mode": "on"}), 422, "mode"),
        ("tiers/gold", json!({"quotas": ["5/1h"]}), 422, "tier"),
        ("keys/a", json!({"tier": "gold"}), 422, "tier"),
        ("keys/a", json!({"tier": "premium", "quotas": ["5/1h"]}), 422, "quotas"),
    ];
    for (part, body, status, field) in table {
        let response = send(&server, "PUT", &format!("/v1/policies/api/{part}"), &body);
        assert_eq!(response.status, status, "{body}: {response:?}");
        assert_eq!(response.header("content-type"), Some("application/problem+json"), "{body}");
        assert!(response.json()["field"] == field || field == "why", "{body}: {response:?}");
    }
    assert_eq!(send(&server, "PUT", "/v1/policies/unknown/mode", &json!({"mode": "off"})).status, 404);
    assert_eq!(send(&server, "GET", "/v1/policies/unknown", &Value::Null).status, 404);
    assert_eq!(send(&server, "POST", "/v1/policies", &Value::Null).status, 405);
    assert_eq!(send(&server, "GET", "/v1/policies/api/keys/%FF", &Value::Null).status, 400);
    assert_eq!(send(&server, "POST", "/v1/policies/api/keys/a/reset", &json!({"cost": 1})).status, 422);
    let text = request_with_headers(admin_address(&server), "PUT", "/v1/policies/api/mode", "", b"{");
    assert_eq!(text.status, 400);
    let long = format!("/v1/policies/api/keys/{}", "k".repeat(5000));
    assert_eq!(send(&server, "PUT", &long, &json!({"quotas": ["5/1h"]})).json()["field"], "key");
    assert_eq!(get(&server, "/v1/changes")["changes"], json!([]));
    assert_eq!(get(&server, "/v1/audit")["audit"], json!([]));
}

const READ: &str = "0123456789abcdef-read";
const WRITE: &str = "0123456789abcdef-write";

#[test]
fn requests_need_a_token_with_the_right_scope() {
    let tokens = format!(
        "{POLICIES}\nadmin:\n  tokens:\n    - {{name: viewer, token: {READ}}}\n    - {{name: ops, token: {WRITE}, scope: write}}\n"
    );
    let config = TempFile::new("scopes", &tokens);
    let server = serve(&config, &[]);
    let path = "/v1/policies/api/mode";
    let off = json!({"mode": "off"});
    for token in ["", "0123456789abcdef-wrong"] {
        for (method, path) in [("GET", "/v1/policies"), ("PUT", path), ("GET", "/nowhere")] {
            let rejection = send_with_token(&server, token, method, path, &off);
            assert_eq!(
                (rejection.status, rejection.header("www-authenticate")),
                (401, Some("Bearer")),
                "{path}"
            );
        }
    }
    assert_eq!(send_with_token(&server, READ, "GET", "/v1/policies", &Value::Null).status, 200);
    let rejection = send_with_token(&server, READ, "PUT", path, &off);
    assert!(rejection.status == 403 && rejection.body.contains("viewer"), "{rejection:?}");
    assert_eq!(send_with_token(&server, READ, "DELETE", path, &Value::Null).status, 403);
    assert_eq!(
        send_with_token(&server, READ, "POST", "/v1/policies/api/keys/a/reset", &Value::Null).status,
        403
    );
    ok_json(&send_with_token(&server, WRITE, "PUT", path, &off));
    let audit = ok_json(&send_with_token(&server, READ, "GET", "/v1/audit", &Value::Null));
    assert_eq!(audit["audit"][0]["by"], "ops");
}

#[test]
fn without_tokens_requests_of_a_browser_page_are_rejected() {
    let config = TempFile::new("page", POLICIES);
    let server = serve(&config, &[]);
    let origin = "origin: https://evil.example\r\n";
    let rejection = request_with_headers(admin_address(&server), "GET", "/v1/policies", origin, b"");
    assert_eq!(rejection.status, 403, "{rejection:?}");
}

#[test]
fn changes_survive_a_killed_server() {
    let config = TempFile::new("killed", POLICIES);
    let state = config.path().replace(".yaml", ".state.json");
    let mut server = serve(&config, &[]);
    put(&server, "/v1/policies/api/keys/customer", &json!({"quotas": ["1000/1h"]}));
    put(&server, "/v1/policies/login/mode", &json!({"mode": "off"}));
    server.signal_and_wait("KILL");
    let server = serve(&config, &[]);
    assert_eq!(limit(&server, "customer"), 1000);
    assert_eq!(get(&server, "/v1/policies/login")["mode"], "off");
    assert_eq!(get(&server, "/v1/audit")["audit"].as_array().unwrap().len(), 2);
    let has_startup_line =
        |server: &ServeProcess, line: &str| server.startup_lines.iter().any(|other| other == line);
    assert!(
        has_startup_line(&server, "changes: 2 changes by the admin API are in force"),
        "{:?}",
        server.startup_lines
    );
    put(&server, "/v1/policies/api/quotas", &json!({"quotas": ["7/1h"]}));
    assert!(has_startup_line(&server, "policy api: 2/1h"), "{:?}", server.startup_lines);
    drop(server);
    let server = serve(&config, &[]);
    assert!(has_startup_line(&server, "policy api: 7/1h"), "{:?}", server.startup_lines);
    std::fs::remove_file(state).unwrap();
}

#[test]
fn a_change_that_cannot_be_persisted_is_rejected() {
    let config =
        TempFile::new("nowhere", &format!("{POLICIES}\nadmin: {{state: /nonexistent/state.json}}\n"));
    let log = TempFile::new("nowhere-log", "");
    let server = serve_with_log(&config, &log);
    until_logged(&log, "/nonexistent/state.json");
    let rejection = send(&server, "PUT", "/v1/policies/api/quotas", &json!({"quotas": ["7/1h"]}));
    assert_eq!(rejection.status, 503, "{rejection:?}");
    assert!(
        rejection.body.contains("nothing was changed") && rejection.body.contains("/nonexistent"),
        "{rejection:?}"
    );
    assert_eq!(limit(&server, "a"), 2);
    assert_eq!(get(&server, "/v1/changes")["changes"], json!([]));
}

/// A reload logs each entry of the file that a change hides. Keys are not logged in plain text.
#[test]
fn a_reload_logs_entries_of_the_file_that_changes_hide() {
    let overridden = POLICIES.replace("  login:", "    overrides: {vip: {quotas: [9/1h]}}\n  login:");
    let config = TempFile::new("in-vain", &overridden);
    let log = TempFile::new("in-vain-log", "");
    let server = serve_with_log(&config, &log);
    put(&server, "/v1/policies/api/tiers/premium", &json!({"quotas": ["6/1h"]}));
    put(&server, "/v1/policies/api/keys/vip", &json!({"quotas": ["8/1h"]}));
    put(&server, "/v1/policies/api/keys/other", &json!({"quotas": ["8/1h"]}));
    server.send_signal("HUP");
    until_logged(&log, "reloaded the configuration");
    let logged = std::fs::read_to_string(log.path()).unwrap();
    let hidden: Vec<_> = logged.lines().filter(|line| line.contains("in the configuration file")).collect();
    assert!(hidden.len() == 2 && hidden[0].contains(r#"name="premium""#), "{logged}");
    assert!(hidden[1].contains(r#"of="key""#) && !hidden[1].contains("vip"), "{logged}");
}

fn serve_with_log(config: &TempFile, log: &TempFile) -> ServeProcess {
    ServeProcess::start_with_log(&mut command(config), std::fs::File::create(log.path()).unwrap().into())
}

fn until_logged(log: &TempFile, text: &str) {
    until("a line in the log", || {
        let logged = std::fs::read_to_string(log.path()).unwrap();
        if logged.contains(text) { Ok(()) } else { Err(logged) }
    });
}

#[test]
fn a_change_expires() {
    let config = TempFile::new("ends", POLICIES);
    let server = serve(&config, &[]);
    put(&server, "/v1/policies/api/quotas", &json!({"quotas": ["7/1h"], "for": "100ms"}));
    until_limit(&server, "a", 2);
    assert_eq!(get(&server, "/v1/policies/api")["changes"], json!([]));
}

#[test]
fn a_change_that_expired_during_downtime_is_audited_first() {
    let config = TempFile::new("unseen", POLICIES);
    let log = TempFile::new("unseen-log", "");
    let mut before = serve(&config, &[]);
    put(&before, "/v1/policies/api/keys/hush", &json!({"quotas": ["7/1h"], "for": "50ms"}));
    before.signal_and_wait("KILL");
    let server = serve_with_log(&config, &log);
    until_limit(&server, "hush", 2);
    put(&server, "/v1/policies/login/mode", &json!({"mode": "off"}));
    let audit = get(&server, "/v1/audit");
    let actions: Vec<_> = audit["audit"].as_array().unwrap().iter().map(|entry| &entry["action"]).collect();
    assert_eq!(actions, ["set", "expire", "set"], "{audit}");
    until_logged(&log, "by=\"expiry\" action=Expire policy=\"api\" of=\"key\"");
    assert!(!std::fs::read_to_string(log.path()).unwrap().contains("hush"), "keys are hashed in the log");
}

#[test]
fn without_tokens_http_2_requests_of_a_browser_page_are_rejected() {
    let config = TempFile::new("page2", POLICIES);
    let server = serve(&config, &[]);
    let address = admin_address(&server);
    let send = |host: &str| {
        let (port, to) = (address.port(), format!("{host}:{}:{}", address.port(), address.ip()));
        let url = format!("http://{host}:{port}/v1/policies");
        let arguments =
            ["-s", "-o", "/dev/null", "-w", "%{http_code}", "--http2-prior-knowledge", "--resolve"];
        outcome(Command::new("curl").args(arguments).args([to, url])).1
    };
    assert_eq!((send("localhost").as_str(), send("evil.example").as_str()), ("200", "403"));
}

#[test]
fn top_shows_decisions_and_heavy_hitters() {
    let config = TempFile::new("top", POLICIES);
    let server = serve(&config, &[]);
    for _ in 0..3 {
        server.check(&json!({"policy": "api", "key": "user:1\u{1b}[2J"})).decision();
    }
    let admin = format!("http://{}", admin_address(&server));
    let (code, out, err) = outcome(slidegate().args(["top", "--once", "--admin", &admin]));
    assert_eq!((code, err.as_str()), (0, ""));
    for expected in ["api                    enforce", "33.33 %", "api  user:1·[2J", "1 key  0 changes"] {
        assert!(out.contains(expected), "{expected}: {out}");
    }
    let (code, _, err) = outcome(slidegate().args(["top", "--once", "--admin", "http://127.0.0.1:1"]));
    assert!(code == 2 && err.contains("request to http://127.0.0.1:1 failed"), "{err}");
}

#[test]
fn an_invalid_or_too_large_body_gets_a_problem_document() {
    let config = TempFile::new("bodies", POLICIES);
    let server = serve(&config, &[]);
    let put =
        |body: &[u8]| request_with_headers(admin_address(&server), "PUT", "/v1/policies/api/mode", "", body);
    // An array of the field values in declaration order is no object either.
    let list = put(br#"["off", null, null, null, null, null]"#);
    assert_eq!((list.status, list.header("content-type")), (400, Some("application/problem+json")));
    let large = put(" ".repeat(70_000).as_bytes());
    assert_eq!((large.status, large.header("content-type")), (413, Some("application/problem+json")));
    assert_eq!(get(&server, "/v1/changes")["changes"], json!([]));
}
