//! The admin API: what it changes, where that is kept, and who may.

use std::net::SocketAddr;
use std::process::Command;

use serde_json::{Value, json};
use slidegate_testkit::{Flavour, Postgres, Server, until};

use crate::process::{Serving, TempFile, outcome, slidegate};
use crate::rig::{Reply, request_with};

const POLICIES: &str = "
policies:
  api:
    quotas: [2/1h]
    tiers:
      premium: {quotas: [5/1h]}
  login:
    quotas: [{limit: 3, window: 1d, name: daily}]
";

fn serve(config: &TempFile, more: &[&str]) -> Serving {
    Serving::start(command(config).args(more))
}

fn command(config: &TempFile) -> Command {
    let mut command = slidegate();
    command.args(["serve", "--http", "127.0.0.1:0", "--config", config.path()]);
    command
}

fn admin_address(server: &Serving) -> SocketAddr {
    let line = server.greeting.iter().find_map(|line| line.strip_prefix("admin: http://"));
    line.unwrap().parse().unwrap()
}

fn ask(server: &Serving, method: &str, path: &str, body: &Value) -> Reply {
    ask_as(server, "", method, path, body)
}

fn ask_as(server: &Serving, token: &str, method: &str, path: &str, body: &Value) -> Reply {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let line = if token.is_empty() { String::new() } else { format!("authorization: Bearer {token}\r\n") };
    request_with(admin_address(server), method, path, &line, body.as_bytes())
}

fn done(reply: &Reply) -> Value {
    assert_eq!(reply.status, 200, "{reply:?}");
    reply.json()
}

fn get(server: &Serving, path: &str) -> Value {
    done(&ask(server, "GET", path, &Value::Null))
}

fn put(server: &Serving, path: &str, body: &Value) -> Value {
    done(&ask(server, "PUT", path, body))
}

/// What the audit has of one kind, the latest first.
fn audited(server: &Serving, action: &str) -> Vec<Value> {
    let entries = get(server, "/v1/audit")["audit"].as_array().unwrap().clone();
    entries.into_iter().filter(|entry| entry["action"] == action).collect()
}

fn until_expired(server: &Serving, count: usize) -> Vec<Value> {
    until("an end is written down", || {
        let entries = audited(server, "expire");
        if entries.len() >= count { Ok(entries) } else { Err(format!("{entries:?}")) }
    })
}

fn limit(server: &Serving, key: &str) -> Value {
    let asked = request_with(
        server.url().strip_prefix("http://").unwrap().parse().unwrap(),
        "POST",
        "/v1/peek",
        "",
        json!({"policy": "api", "key": key}).to_string().as_bytes(),
    );
    asked.decision()["limit"].clone()
}

/// Waits until the limit of a key is what another node has made it.
fn until_limit(server: &Serving, key: &str, wanted: u64) {
    until("the limit of another node", || {
        let seen = limit(server, key);
        if seen == json!(wanted) { Ok(()) } else { Err(seen.to_string()) }
    });
}

#[test]
fn policies_are_listed_as_they_are_in_force_with_live_numbers() {
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
    // What stands out is told without delay and in full, as long as it is little.
    let live = get(&server, "/v1/live");
    let hitter = |count| json!([{"policy": "api", "key": "a", "count": count, "error": 0}]);
    assert_eq!((&live["busiest"], &live["most_denied"]), (&hitter(3), &hitter(1)));
    assert_eq!(live["policies"][0]["since_start"]["denied"], 1);
}

#[test]
fn a_limit_is_changed_at_once_and_goes_back_to_the_files() {
    let config = TempFile::new("limit", POLICIES);
    let server = serve(&config, &[]);
    let answer = put(&server, "/v1/policies/api/quotas", &json!({"quotas": ["7/1h"]}));
    let quotas = |quota: &str| json!({"quotas": [quota]});
    assert_eq!((&answer["before"], &answer["after"]), (&quotas("2/1h"), &quotas("7/1h")));
    assert_eq!(limit(&server, "a"), 7);
    put(&server, "/v1/policies/api/tiers/premium", &json!({"quotas": [{"limit": 70, "window": "1h"}]}));
    put(&server, "/v1/policies/api/keys/customer%3A42%2Feu", &json!({"quotas": ["1000/1h"], "for": "3d"}));
    put(&server, "/v1/policies/api/keys/partner", &json!({"tier": "premium", "until": "2030-01-01"}));
    assert_eq!((limit(&server, "customer:42/eu"), limit(&server, "partner")), (json!(1000), json!(70)));
    // One about the same takes its place.
    put(&server, "/v1/policies/api/keys/partner", &json!({"quotas": ["9/1h"]}));
    assert_eq!((limit(&server, "partner"), limit(&server, "a")), (json!(9), json!(7)));
    let changes = get(&server, "/v1/changes");
    assert_eq!(changes["changes"].as_array().unwrap().len(), 4);

    for path in ["quotas", "tiers/premium", "keys/customer:42%2Feu", "keys/partner"] {
        let path = format!("/v1/policies/api/{path}");
        assert_eq!(done(&ask(&server, "DELETE", &path, &Value::Null))["action"], "remove");
        assert_eq!(ask(&server, "DELETE", &path, &Value::Null).status, 404);
    }
    assert_eq!((limit(&server, "customer:42/eu"), limit(&server, "a")), (json!(2), json!(2)));
}

#[test]
fn what_lasts_longer_is_in_force_again_when_a_change_ends() {
    let config = TempFile::new("layers", POLICIES);
    let server = serve(&config, &[]);
    let path = "/v1/policies/api/keys/customer";
    put(&server, path, &json!({"quotas": ["500/1h"]}));
    put(&server, path, &json!({"quotas": ["1000/1h"], "for": "200ms"}));
    until_limit(&server, "customer", 500);
    let set = audited(&server, "set");
    assert_eq!(set[0]["before"], json!({"quotas": ["500/1h"]}));
    assert_eq!(set[1]["before"], Value::Null, "the file says nothing of this key");
    // To take it back takes back all of it.
    put(&server, path, &json!({"quotas": ["1000/1h"], "for": "1h"}));
    assert_eq!(done(&ask(&server, "DELETE", path, &Value::Null))["before"]["quotas"], json!(["1000/1h"]));
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
    done(&ask(&server, "DELETE", "/v1/policies/api/mode", &Value::Null));
    assert_eq!(check()["allowed"], false);
}

#[test]
fn a_key_is_looked_at_given_back_and_written_down() {
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
    let back = done(&ask(&server, "POST", &format!("{path}/refund"), &json!({"cost": 2, "note": "sorry"})));
    assert_eq!((&back["state"]["remaining"], &back["kept"]), (&json!(2), &json!(true)));
    done(&ask(&server, "POST", &format!("{path}/reset"), &Value::Null));
    assert_eq!(get(&server, path)["state"]["remaining"], 3);
    let audit = get(&server, "/v1/audit");
    let [reset, refund] = audit["audit"].as_array().unwrap().as_slice() else { panic!("{audit}") };
    let told =
        |entry: &Value| json!([entry["action"], entry["by"], entry["before"], entry["after"], entry["note"]]);
    let used = |used| json!({"used": {"daily": used}});
    assert_eq!(told(refund), json!(["refund", "(no token)", used(3), used(1), "sorry"]));
    assert_eq!(told(reset), json!(["reset", "(no token)", used(1), used(0), null]));
}

#[test]
fn what_makes_no_sense_is_refused_and_changes_nothing() {
    let config = TempFile::new("nonsense", POLICIES);
    let server = serve(&config, &[]);
    let table = [
        ("quotas", json!({"quotas": ["0/1h"]}), 422, "quotas[0]"),
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
        let reply = ask(&server, "PUT", &format!("/v1/policies/api/{part}"), &body);
        assert_eq!(reply.status, status, "{body}: {reply:?}");
        assert_eq!(reply.header("content-type"), Some("application/problem+json"), "{body}");
        assert!(reply.json()["field"] == field || field == "why", "{body}: {reply:?}");
    }
    assert_eq!(ask(&server, "PUT", "/v1/policies/nobody/mode", &json!({"mode": "off"})).status, 404);
    assert_eq!(ask(&server, "GET", "/v1/policies/nobody", &Value::Null).status, 404);
    assert_eq!(ask(&server, "POST", "/v1/policies", &Value::Null).status, 405);
    assert_eq!(ask(&server, "GET", "/v1/policies/api/keys/%FF", &Value::Null).status, 400);
    assert_eq!(ask(&server, "POST", "/v1/policies/api/keys/a/reset", &json!({"cost": 1})).status, 422);
    let text = request_with(admin_address(&server), "PUT", "/v1/policies/api/mode", "", b"{");
    assert_eq!(text.status, 400);
    let long = format!("/v1/policies/api/keys/{}", "k".repeat(5000));
    assert_eq!(ask(&server, "PUT", &long, &json!({"quotas": ["5/1h"]})).json()["field"], "key");
    assert_eq!(get(&server, "/v1/changes")["changes"], json!([]));
    assert_eq!(get(&server, "/v1/audit")["audit"], json!([]));
}

const READ: &str = "0123456789abcdef-read";
const WRITE: &str = "0123456789abcdef-write";

#[test]
fn only_who_has_a_token_gets_in_and_only_its_scope_far() {
    let tokens = format!(
        "{POLICIES}\nadmin:\n  tokens:\n    - {{name: viewer, token: {READ}}}\n    - {{name: ops, token: {WRITE}, scope: write}}\n"
    );
    let config = TempFile::new("scopes", &tokens);
    let server = serve(&config, &[]);
    let path = "/v1/policies/api/mode";
    let off = json!({"mode": "off"});
    for token in ["", "0123456789abcdef-wrong"] {
        for (method, path) in [("GET", "/v1/policies"), ("PUT", path), ("GET", "/nowhere")] {
            let refused = ask_as(&server, token, method, path, &off);
            assert_eq!((refused.status, refused.header("www-authenticate")), (401, Some("Bearer")), "{path}");
        }
    }
    assert_eq!(ask_as(&server, READ, "GET", "/v1/policies", &Value::Null).status, 200);
    let refused = ask_as(&server, READ, "PUT", path, &off);
    assert!(refused.status == 403 && refused.body.contains("viewer"), "{refused:?}");
    assert_eq!(ask_as(&server, READ, "DELETE", path, &Value::Null).status, 403);
    assert_eq!(ask_as(&server, READ, "POST", "/v1/policies/api/keys/a/reset", &Value::Null).status, 403);
    done(&ask_as(&server, WRITE, "PUT", path, &off));
    let audit = done(&ask_as(&server, READ, "GET", "/v1/audit", &Value::Null));
    assert_eq!(audit["audit"][0]["by"], "ops");
}

#[test]
fn without_tokens_a_page_in_a_browser_is_not_let_in() {
    let config = TempFile::new("page", POLICIES);
    let server = serve(&config, &[]);
    let origin = "origin: https://evil.example\r\n";
    let refused = request_with(admin_address(&server), "GET", "/v1/policies", origin, b"");
    assert_eq!(refused.status, 403, "{refused:?}");
}

#[test]
fn changes_survive_an_end_without_warning() {
    let config = TempFile::new("killed", POLICIES);
    let state = config.path().replace(".yaml", ".state.json");
    let mut server = serve(&config, &[]);
    put(&server, "/v1/policies/api/keys/customer", &json!({"quotas": ["1000/1h"]}));
    put(&server, "/v1/policies/login/mode", &json!({"mode": "off"}));
    server.signal("KILL");
    let server = serve(&config, &[]);
    assert_eq!(limit(&server, "customer"), 1000);
    assert_eq!(get(&server, "/v1/policies/login")["mode"], "off");
    assert_eq!(get(&server, "/v1/audit")["audit"].as_array().unwrap().len(), 2);
    std::fs::remove_file(state).unwrap();
}

#[test]
fn a_change_that_cannot_be_kept_is_not_made() {
    let config =
        TempFile::new("nowhere", &format!("{POLICIES}\nadmin: {{state: /nonexistent/state.json}}\n"));
    let log = TempFile::new("nowhere-log", "");
    let server = serve_with_log(&config, &log);
    until_said(&log, "/nonexistent/state.json");
    let refused = ask(&server, "PUT", "/v1/policies/api/quotas", &json!({"quotas": ["7/1h"]}));
    assert_eq!(refused.status, 503, "{refused:?}");
    assert!(
        refused.body.contains("nothing was changed") && refused.body.contains("/nonexistent"),
        "{refused:?}"
    );
    assert_eq!(limit(&server, "a"), 2);
    assert_eq!(get(&server, "/v1/changes")["changes"], json!([]));
}

/// Whoever edits the file is told where that has no effect, and of keys no more than elsewhere in the log.
#[test]
fn what_the_file_says_in_vain_is_told_when_it_is_read_again() {
    let overridden = POLICIES.replace("  login:", "    overrides: {vip: {quotas: [9/1h]}}\n  login:");
    let config = TempFile::new("in-vain", &overridden);
    let log = TempFile::new("in-vain-log", "");
    let server = serve_with_log(&config, &log);
    put(&server, "/v1/policies/api/tiers/premium", &json!({"quotas": ["6/1h"]}));
    put(&server, "/v1/policies/api/keys/vip", &json!({"quotas": ["8/1h"]}));
    put(&server, "/v1/policies/api/keys/other", &json!({"quotas": ["8/1h"]}));
    server.send_signal("HUP");
    until_said(&log, "the configuration was read again");
    let logged = std::fs::read_to_string(log.path()).unwrap();
    let told: Vec<_> = logged.lines().filter(|line| line.contains("the file says")).collect();
    assert!(told.len() == 2 && told[0].contains(r#"name="premium""#), "{logged}");
    assert!(told[1].contains(r#"of="key""#) && !told[1].contains("vip"), "{logged}");
}

fn serve_with_log(config: &TempFile, log: &TempFile) -> Serving {
    Serving::start_with_log(&mut command(config), std::fs::File::create(log.path()).unwrap().into())
}

fn until_said(log: &TempFile, text: &str) {
    until("a line in the log", || {
        let logged = std::fs::read_to_string(log.path()).unwrap();
        if logged.contains(text) { Ok(()) } else { Err(logged) }
    });
}

#[test]
fn a_change_ends_by_itself() {
    let config = TempFile::new("ends", POLICIES);
    let server = serve(&config, &[]);
    put(&server, "/v1/policies/api/quotas", &json!({"quotas": ["7/1h"], "for": "100ms"}));
    until_limit(&server, "a", 2);
    assert_eq!(get(&server, "/v1/policies/api")["changes"], json!([]));
}

/// The audit says once that a change has ended, however many nodes have seen it.
fn is_written_down_once(store: &str) {
    let config = TempFile::new("expires", POLICIES);
    let store = ["--store", store];
    let nodes = [serve(&config, &store), serve(&config, &store), serve(&config, &store)];
    let first = json!({"quotas": ["7/1h"], "for": "100ms", "note": "ticket 42"});
    let set = put(&nodes[0], "/v1/policies/api/quotas", &first);
    let ended = until_expired(&nodes[1], 1);
    let entry = &ended[0];
    assert_eq!((&entry["by"], &entry["at"]), (&json!("expiry"), &set["after"]["until"]), "{entry}");
    assert_eq!((&entry["before"], &entry["after"]), (&set["after"], &json!({"quotas": ["2/1h"]})), "{entry}");
    assert_eq!(
        (&entry["policy"], &entry["of"], &entry["note"]),
        (&json!("api"), &json!("quotas"), &json!("ticket 42"))
    );
    // Until another one has ended, every node has looked again.
    put(&nodes[2], "/v1/policies/login/mode", &json!({"mode": "off", "for": "100ms"}));
    for node in &nodes {
        let ended = until_expired(node, 2);
        let policies: Vec<_> = ended.iter().map(|entry| &entry["policy"]).collect();
        assert_eq!(policies, ["login", "api"], "{ended:?}");
    }
}

#[test]
fn the_end_of_a_change_is_written_down_once_by_all_nodes_on_one_redis() {
    let redis = Server::start(Flavour::Redis);
    is_written_down_once(&format!("{}?budget_ms=5000", redis.url()));
}

#[test]
fn the_end_of_a_change_is_written_down_once_by_all_nodes_on_one_postgres() {
    let postgres = Postgres::start();
    is_written_down_once(&format!("{}?budget_ms=5000", postgres.url()));
}

#[test]
fn what_has_ended_while_nobody_looked_is_written_down_before_anything_else() {
    let config = TempFile::new("unseen", POLICIES);
    let log = TempFile::new("unseen-log", "");
    let mut before = serve(&config, &[]);
    put(&before, "/v1/policies/api/keys/hush", &json!({"quotas": ["7/1h"], "for": "50ms"}));
    before.signal("KILL");
    let server = serve_with_log(&config, &log);
    until_limit(&server, "hush", 2);
    put(&server, "/v1/policies/login/mode", &json!({"mode": "off"}));
    let audit = get(&server, "/v1/audit");
    let actions: Vec<_> = audit["audit"].as_array().unwrap().iter().map(|entry| &entry["action"]).collect();
    assert_eq!(actions, ["set", "expire", "set"], "{audit}");
    until_said(&log, "by=\"expiry\" action=Expire policy=\"api\" of=\"key\"");
    assert!(!std::fs::read_to_string(log.path()).unwrap().contains("hush"), "keys are hashed in the log");
}

/// What one node changes is in force on the other, also on one that starts later, and when the file is read again.
fn is_seen_by_all(store: &str) {
    let config = TempFile::new("nodes", POLICIES);
    let store = ["--store", store];
    let [one, other] = [serve(&config, &store), serve(&config, &store)];
    put(&one, "/v1/policies/api/quotas", &json!({"quotas": ["7/1h"]}));
    assert_eq!(limit(&one, "a"), 7);
    until_limit(&other, "a", 7);
    // By turns, and neither is lost.
    put(&other, "/v1/policies/api/keys/b", &json!({"quotas": ["70/1h"]}));
    put(&one, "/v1/policies/api/keys/c", &json!({"quotas": ["700/1h"]}));
    until_limit(&other, "c", 700);
    until_limit(&one, "b", 70);
    let third = serve(&config, &store);
    assert_eq!((limit(&third, "a"), limit(&third, "b")), (json!(7), json!(70)));
    std::fs::write(config.path(), POLICIES.replace("quotas: [2/1h]", "quotas: [3/1h]")).unwrap();
    third.send_signal("HUP");
    done(&ask(&one, "DELETE", "/v1/policies/api/quotas", &Value::Null));
    until_limit(&third, "a", 3);
    assert_eq!(limit(&third, "b"), 70);
}

#[test]
fn all_nodes_on_one_redis_see_a_change() {
    let redis = Server::start(Flavour::Redis);
    is_seen_by_all(&format!("{}?budget_ms=5000", redis.url()));
}

#[test]
fn all_nodes_on_one_postgres_see_a_change() {
    let postgres = Postgres::start();
    is_seen_by_all(&format!("{}?budget_ms=5000", postgres.url()));
}

#[test]
fn a_store_that_has_forgotten_is_told_again() {
    let redis = Server::start(Flavour::Redis);
    let store = format!("{}?budget_ms=5000", redis.url());
    let config = TempFile::new("forgotten", POLICIES);
    let server = serve(&config, &["--store", &store]);
    put(&server, "/v1/policies/api/quotas", &json!({"quotas": ["7/1h"]}));
    redis.command(&["FLUSHALL"]).ok();
    until("the note is back", || match redis.command(&["EXISTS", "sg:note"]).int() {
        1 => Ok(()),
        other => Err(other.to_string()),
    });
    assert_eq!(limit(&serve(&config, &["--store", &store]), "a"), 7);
}

#[test]
fn a_store_that_comes_back_with_an_older_book_is_told_the_newer_one() {
    let redis = Server::start(Flavour::Redis);
    let store = format!("{}?budget_ms=5000", redis.url());
    let config = TempFile::new("older", POLICIES);
    let server = serve(&config, &["--store", &store]);
    put(&server, "/v1/policies/api/quotas", &json!({"quotas": ["7/1h"]}));
    // As from a backup.
    assert_eq!(redis.command(&["COPY", "sg:note", "old"]).int(), 1);
    put(&server, "/v1/policies/login/mode", &json!({"mode": "off"}));
    assert_eq!(redis.command(&["COPY", "old", "sg:note", "REPLACE"]).int(), 1);
    let is_there = |needle: &str| {
        let note = redis.command(&["GET", "sg:note"]).text();
        if note.contains(needle) { Ok(()) } else { Err(note) }
    };
    until("the newer one is back", || is_there("login"));
    assert_eq!(get(&server, "/v1/policies/login")["mode"], "off");
}

#[test]
fn a_node_that_knows_nothing_does_not_undo_what_others_know() {
    let redis = Server::start(Flavour::Redis);
    let store = format!("{}?budget_ms=5000", redis.url());
    let config = TempFile::new("fresh", POLICIES);
    let old = serve(&config, &["--store", &store]);
    put(&old, "/v1/policies/api/keys/a", &json!({"quotas": ["70/1h"]}));
    redis.command(&["FLUSHALL"]).ok();
    let fresh = serve(&config, &["--store", &store]);
    put(&fresh, "/v1/policies/api/keys/b", &json!({"quotas": ["700/1h"]}));
    until_limit(&old, "b", 700);
    for server in [&old, &fresh] {
        assert_eq!((limit(server, "a"), limit(server, "b")), (json!(70), json!(700)));
    }
}

#[test]
fn a_service_that_starts_without_its_store_says_that_it_knows_no_changes() {
    let config = TempFile::new("unknown", POLICIES);
    let server = serve(&config, &["--store", "redis://127.0.0.1:1"]);
    assert_eq!(server.get("/readyz").json()["changes_known"], false);
    let metrics = server.get("/metrics").body;
    assert!(metrics.contains("slidegate_changes_known 0"), "{metrics}");
    let refused = ask(&server, "PUT", "/v1/policies/api/mode", &json!({"mode": "off"}));
    assert!(refused.status == 503 && refused.body.contains("nothing was changed"), "{refused:?}");
}

#[test]
fn over_http_2_a_page_in_a_browser_is_not_let_in_either() {
    let config = TempFile::new("page2", POLICIES);
    let server = serve(&config, &[]);
    let address = admin_address(&server);
    let ask = |host: &str| {
        let (port, to) = (address.port(), format!("{host}:{}:{}", address.port(), address.ip()));
        let url = format!("http://{host}:{port}/v1/policies");
        let arguments =
            ["-s", "-o", "/dev/null", "-w", "%{http_code}", "--http2-prior-knowledge", "--resolve"];
        outcome(Command::new("curl").args(arguments).args([to, url])).1
    };
    assert_eq!((ask("localhost").as_str(), ask("evil.example").as_str()), ("200", "403"));
}

#[test]
fn top_shows_what_a_running_server_does() {
    let config = TempFile::new("top", POLICIES);
    let server = serve(&config, &[]);
    for _ in 0..3 {
        server.check(&json!({"policy": "api", "key": "user:1\u{1b}[2J"})).decision();
    }
    let admin = format!("http://{}", admin_address(&server));
    let (code, out, err) = outcome(slidegate().args(["top", "--once", "--admin", &admin]));
    assert_eq!((code, err.as_str()), (0, ""));
    for wanted in ["api                    enforce", "33.33 %", "api  user:1·[2J", "1 keys", "0 changes"] {
        assert!(out.contains(wanted), "{wanted}: {out}");
    }
    let (code, _, err) = outcome(slidegate().args(["top", "--once", "--admin", "http://127.0.0.1:1"]));
    assert!(code == 2 && err.contains("cannot ask http://127.0.0.1:1"), "{err}");
}

#[test]
fn a_body_that_is_no_object_or_too_large_is_refused_in_the_usual_words() {
    let config = TempFile::new("bodies", POLICIES);
    let server = serve(&config, &[]);
    let put = |body: &[u8]| request_with(admin_address(&server), "PUT", "/v1/policies/api/mode", "", body);
    // Not even one that has the fields' values in their order.
    let list = put(br#"["off", null, null, null, null, null]"#);
    assert_eq!((list.status, list.header("content-type")), (400, Some("application/problem+json")));
    let large = put(" ".repeat(70_000).as_bytes());
    assert_eq!((large.status, large.header("content-type")), (413, Some("application/problem+json")));
    assert_eq!(get(&server, "/v1/changes")["changes"], json!([]));
}
