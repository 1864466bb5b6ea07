//! Tokens: authorization of each verb and entry point, secrecy, and rotation.

use std::fs::{self, File};
use std::net::SocketAddr;

use slidegate_testkit::{Connection, until};

use crate::harness::{Response, Server, request, request_with_headers};
use crate::process::{ServeProcess, TempFile, outcome, slidegate};

const TOKEN: &str = "hush-0123456789abcdef";
const BODY: &[u8] = br#"{"policy": "api", "key": "a"}"#;

fn file(token: &str) -> String {
    format!("tokens:\n  - {{name: app, {token}}}\npolicies: {{api: {{quotas: [5/1h]}}}}\n")
}

fn post(address: SocketAddr, verb: &str, lines: &str) -> Response {
    request_with_headers(address, "POST", &format!("/v1/{verb}"), lines, BODY)
}

#[test]
fn decisions_need_a_token() {
    let server = Server::with_config(&file(&format!("token: {TOKEN}")));
    let bearer = |token: &str| format!("authorization: Bearer {token}\r\n");
    for verb in ["check", "peek", "refund", "reset"] {
        for lines in ["", &bearer("hush-0123456789abcdee"), "authorization: Basic aHVzaA==\r\n"] {
            let response = post(server.address, verb, lines);
            assert_eq!(response.status, 401, "{verb} {lines}: {response:?}");
            assert_eq!(response.header("www-authenticate"), Some("Bearer"));
            assert_eq!(response.header("content-type"), Some("application/problem+json"));
            assert!(!response.body.contains("hush"), "{response:?}");
        }
    }
    let response = post(server.address, "check", &bearer(TOKEN));
    assert_eq!(response.decision()["remaining"], 4, "rejected requests were not charged");
    for path in ["/healthz", "/readyz", "/openapi.json"] {
        assert_eq!(request(server.address, "GET", path, b"").status, 200, "{path}");
    }
    let document = request(server.address, "GET", "/openapi.json", b"").json();
    let check = &document["paths"]["/v1/check"]["post"];
    assert_eq!(check["security"], serde_json::json!([{}, {"token": []}]));
    assert!(check["responses"]["401"].is_object());
    assert_eq!(document["components"]["securitySchemes"]["token"]["scheme"], "bearer");
}

/// A token authorizes the verbs of its entry and no others, at every entry point.
#[test]
fn a_token_authorizes_only_its_verbs() {
    const OPS: &str = "hush-0123456789abcdef-ops";
    let more = format!("token: {TOKEN}}}\n  - {{name: ops, token: {OPS}, verbs: [refund, reset]");
    let server = Server::with_config(&file(&more));
    let lines = |token: &str| format!("authorization: Bearer {token}\r\n");
    for (verb, is_default) in [("check", true), ("peek", true), ("refund", false), ("reset", false)] {
        for (token, is_authorized) in [(TOKEN, is_default), (OPS, !is_default)] {
            let response = post(server.address, verb, &lines(token));
            assert_eq!(response.status, if is_authorized { 200 } else { 403 }, "{verb}: {response:?}");
            if !is_authorized {
                assert!(
                    response.json()["detail"].as_str().unwrap().contains(&format!("may not {verb};")),
                    "{response:?}"
                );
            }
        }
    }
    let forget = |token: &str| {
        request_with_headers(server.address, "POST", "/v1/forget", &lines(token), br#"{"policy": "api"}"#)
            .status
    };
    assert_eq!([forget(TOKEN), forget(OPS), forget("other")], [403, 200, 401]);
    let forward = |token: &str| {
        request_with_headers(server.address, "GET", "/forward-auth/api", &lines(token), b"").status
    };
    assert_eq!([forward(TOKEN), forward(OPS)], [204, 403]);
    // The verb of each descriptor of an Envoy request is checked.
    let hits = |more: &str| {
        let descriptor = format!(r#"{{"entries": [{{"key": "b", "value": "c"}}]{more}}}"#);
        let body = format!(r#"{{"domain": "a", "descriptors": [{descriptor}]}}"#);
        request_with_headers(server.address, "POST", "/json", &lines(TOKEN), body.as_bytes()).status
    };
    let [plain, peek] = ["", r#", "hitsAddend": 0"#].map(hits);
    assert_eq!([plain, peek], [200; 2]);
    for more in [
        r#", "hitsAddend": 5"#,
        r#", "hitsAddend": 5, "isNegativeHits": true"#,
        r#", "isNegativeHits": true"#,
    ] {
        assert_eq!(hits(more), 403, "{more}");
    }
}

#[test]
fn envoy_json_and_forward_auth_need_a_token() {
    let server = Server::with_config(&file(&format!("token: {TOKEN}")));
    let json = br#"{"domain": "a", "descriptors": [{"entries": [{"key": "b", "value": "c"}]}]}"#;
    for (method, path, body) in [("POST", "/json", &json[..]), ("GET", "/forward-auth/api", b"")] {
        let send = |lines: &str| request_with_headers(server.address, method, path, lines, body).status;
        let token_header = format!("x-slidegate-token: {TOKEN}\r\n");
        // The header of the client, which a proxy passes on.
        let client_header = "authorization: Bearer of-another-service\r\n";
        assert_eq!([send(""), send(client_header), send("x-slidegate-token: hush\r\n")], [401; 3], "{path}");
        let [by_header, beside] = [send(&token_header), send(&format!("{client_header}{token_header}"))];
        assert!(by_header / 100 == 2 && beside / 100 == 2, "{path}: {by_header} {beside}");
    }
}

#[test]
fn tokens_from_files_and_the_environment_are_not_shown() {
    let secret = TempFile::new("token", &format!("{TOKEN}\n"));
    let log = TempFile::new("log", "");
    for source in ["token_env: SLIDEGATE_TEST_TOKEN", &format!("token_file: {}", secret.path())] {
        let config = TempFile::new("tokens", &file(source));
        let mut command = slidegate();
        command
            .args(["serve", "--http", "127.0.0.1:0", "--config", config.path()])
            .env("SLIDEGATE_TEST_TOKEN", TOKEN)
            .env("RUST_LOG", "trace");
        let mut server = ServeProcess::start_with_log(&mut command, File::create(log.path()).unwrap().into());
        assert_eq!(post(server.address(), "check", "").status, 401);
        let check = |token: &str| {
            let arguments = ["check", "a", "--policy", "api", "--server", server.url()];
            outcome(slidegate().args(arguments).env("SLIDEGATE_TOKEN", token))
        };
        let (code, out, err) = check(TOKEN);
        assert_eq!(code, 0, "{out}{err}");
        let (code, _, err) = check("hush-0123456789abcdee");
        assert!(
            code == 2 && err.contains("401 Unauthorized: the credentials are not a valid token"),
            "{code} {err}"
        );
        assert!(err.ends_with("; set SLIDEGATE_TOKEN to another token\n"), "{err}");
        let (_, _, err) =
            outcome(slidegate().args(["check", "a", "--policy", "api", "--server", server.url()]));
        assert!(err.contains("the request has no token; "), "{err}");
        assert!(err.ends_with("; set SLIDEGATE_TOKEN\n"), "{err}");
        let expected = " -H 'authorization: Bearer TOKEN' -d ";
        assert!(server.example_command().contains(expected), "{}", server.example_command());
        let shown = server.startup_lines.join("\n");
        server.signal_and_wait("TERM");
        let logged = fs::read_to_string(log.path()).unwrap();
        assert!(logged.contains("Unauthorized"), "the rejection is logged: {logged}");
        assert!(!shown.contains("hush") && !logged.contains("hush"), "{shown}\n{logged}");
    }
}

#[test]
fn a_public_admin_listener_needs_tokens() {
    let config = TempFile::new("admin", "policies: {api: {quotas: [5/1h]}}\n");
    let arguments = ["serve", "--http", "127.0.0.1:0", "--config", config.path()];
    let (code, _, err) = outcome(slidegate().args(arguments).args(["--admin", "0.0.0.0:0"]));
    assert_eq!(code, 2);
    assert!(err.contains("admin: 0.0.0.0:0 is not a loopback address and admin.tokens is empty"), "{err}");
    let (code, _, err) = outcome(slidegate().args(arguments).env("SLIDEGATE_ADMIN", "on"));
    assert!(code == 2 && err.contains("HOST:PORT, such as 127.0.0.1:8080 or [::1]:8080, or off"), "{err}");
}

/// A leaked token must be revocable without a restart, on open connections, too.
#[test]
fn tokens_are_replaced_at_runtime() {
    const NEW: &str = "hush-fedcba9876543210";
    let secret = TempFile::new("token", &format!("{TOKEN}\n"));
    let file = |more: &str| {
        let policies = "policies: {api: {quotas: [1000000/1h]}}";
        let admin = format!(
            "admin: {{listen: '127.0.0.1:0', tokens: [{{name: ops, token_file: {}}}]}}",
            secret.path()
        );
        format!("tokens:\n  - {{name: app, token_file: {}}}\n{more}{admin}\n{policies}\n", secret.path())
    };
    let config = TempFile::new("replaced", &file(""));
    let arguments = ["serve", "--http", "127.0.0.1:0", "--resp", "127.0.0.1:0", "--config", config.path()];
    let server = ServeProcess::start(slidegate().args(arguments));
    let check =
        |token: &str| post(server.address(), "check", &format!("authorization: Bearer {token}\r\n")).status;
    let address_of = |name: &str| -> SocketAddr {
        let line = server.startup_lines.iter().find_map(|line| line.strip_prefix(name)).unwrap();
        line.rsplit('/').next().unwrap().parse().unwrap()
    };
    let admin = |token: &str| {
        let lines = format!("authorization: Bearer {token}\r\n");
        request_with_headers(address_of("admin: "), "GET", "/v1/policies", &lines, b"").status
    };
    let mut redis = Connection::open(address_of("resp: ")).unwrap();
    let mut redis = |words: &[&str]| redis.command(words).unwrap();
    assert_eq!(redis(&["AUTH", TOKEN]).text(), "OK");
    assert_eq!([check(TOKEN), check(NEW), admin(TOKEN), admin(NEW)], [200, 401, 200, 401]);

    // Both tokens while clients switch, then only the new one in the same file.
    fs::write(config.path(), file(&format!("  - {{name: next, token: {NEW}}}\n"))).unwrap();
    until("both tokens are valid", || if check(NEW) == 200 { Ok(()) } else { Err("not yet".to_owned()) });
    assert_eq!([check(TOKEN), admin(NEW)], [200, 401]);
    assert_eq!(redis(&["PING"]).text(), "PONG");
    fs::write(config.path(), file("")).unwrap();
    fs::write(secret.path(), NEW).unwrap();
    until(
        "the old token is invalid",
        || if check(TOKEN) == 401 { Ok(()) } else { Err("not yet".to_owned()) },
    );
    assert_eq!([check(NEW), admin(NEW), admin(TOKEN)], [200, 200, 401]);
    let error = redis(&["PING"]);
    assert!(
        matches!(&error, slidegate_testkit::Reply::Error(text) if text.starts_with("NOAUTH")),
        "the connection used the old token: {error:?}"
    );
    assert_eq!(redis(&["AUTH", NEW]).text(), "OK");
    assert_eq!(redis(&["PING"]).text(), "PONG");

    // A revoked token whose file is removed.
    let other = TempFile::new("token", "hush-of-another-service");
    let listed = file(&format!("  - {{name: other, token_file: {}}}\n", other.path()));
    fs::write(config.path(), &listed).unwrap();
    until("the third token is valid", || {
        if check("hush-of-another-service") == 200 { Ok(()) } else { Err(String::new()) }
    });
    fs::remove_file(other.path()).unwrap();
    fs::write(config.path(), file("")).unwrap();
    until("the third token is invalid", || {
        if check("hush-of-another-service") == 401 { Ok(()) } else { Err(String::new()) }
    });

    // A token whose file is created after its entry: until then nothing changes.
    fs::write(config.path(), &listed).unwrap();
    let error = || server.get("/readyz").json()["config_error"].clone();
    until("the missing file is reported", || {
        if error().is_string() { Ok(()) } else { Err(error().to_string()) }
    });
    assert_eq!([check(NEW), check("hush-of-another-service")], [200, 401]);
    fs::write(other.path(), "hush-of-another-service").unwrap();
    until("the third token is valid again", || {
        if check("hush-of-another-service") == 200 { Ok(()) } else { Err(String::new()) }
    });
    assert!(error().is_null(), "{}", error());

    // A file without tokens does not allow requests without a token.
    fs::write(config.path(), "policies: {api: {quotas: [7/1h]}}\n").unwrap();
    let limit = || {
        post(server.address(), "peek", &format!("authorization: Bearer {NEW}\r\n")).json()["limit"].clone()
    };
    until("the file is read", || if limit() == 7 { Ok(()) } else { Err(limit().to_string()) });
    assert_eq!([check(""), admin("")], [401, 401]);
}
