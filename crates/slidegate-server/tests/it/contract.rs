//! The OpenAPI descriptions and their conformance: schemathesis sends generated requests and checks the responses.

use std::path::PathBuf;
use std::process::Command;

use serde_json::{Value, json};

use crate::harness::request_with_headers;
use crate::process::{ServeProcess, TempFile, outcome, slidegate};

const TOKEN: &str = "0123456789abcdef-admin";

fn start(config: &TempFile) -> ServeProcess {
    ServeProcess::start(slidegate().args(["serve", "--http", "127.0.0.1:0", "--config", config.path()]))
}

fn config(name: &str) -> TempFile {
    TempFile::new(name, "policies:\n  api: {quotas: [5/1h, 100/1d], tiers: {premium: {quotas: [50/1h]}}}\n")
}

fn admin_config(name: &str, scope: &str) -> TempFile {
    let policies = std::fs::read_to_string(config(name).path()).unwrap();
    let admin = format!("admin: {{tokens: [{{name: ops, token: {TOKEN}, scope: {scope}}}]}}\n");
    TempFile::new(name, &(admin + &policies))
}

fn admin_url(server: &ServeProcess) -> &str {
    server.startup_lines.iter().find_map(|line| line.strip_prefix("admin: ")).unwrap()
}

/// Collects all `$ref` targets of the document.
fn references(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(fields) => fields.iter().for_each(|(name, value)| match value {
            Value::String(target) if name == "$ref" => found.push(target.clone()),
            value => references(value, found),
        }),
        Value::Array(items) => items.iter().for_each(|item| references(item, found)),
        _ => {}
    }
}

/// Returns the paths of the document after a check that all its references resolve.
fn paths(document: &Value) -> Vec<&String> {
    let mut found = Vec::new();
    references(document, &mut found);
    assert!(found.len() > 20, "{found:?}");
    for target in found {
        assert!(document.pointer(target.strip_prefix('#').unwrap()).is_some(), "{target}");
    }
    document["paths"].as_object().unwrap().keys().collect()
}

#[test]
fn every_path_is_described_and_every_reference_resolves() {
    let config = config("described");
    let server = start(&config);
    let document = server.get("/openapi.json").json();
    assert_eq!(
        paths(&document),
        [
            "/forward-auth/{policy}",
            "/healthcheck",
            "/healthz",
            "/json",
            "/metrics",
            "/readyz",
            "/throttle",
            "/v1/block",
            "/v1/charge",
            "/v1/check",
            "/v1/forget",
            "/v1/peek",
            "/v1/refund",
            "/v1/reset"
        ]
    );
}

#[test]
fn the_described_bounds_of_a_limit_are_those_of_the_service() {
    let config = config("bounds");
    let server = start(&config);
    let document = server.get("/openapi.json").json();
    let limit = document.pointer("/components/schemas/QuotaFields/properties/limit").unwrap();
    let bounds = ["minimum", "maximum"].map(|bound| limit[bound].as_u64().unwrap());
    assert_eq!(bounds, [0, 1 << 48]);
    let status = |limit: u64| {
        let quotas = json!([{"limit": limit, "window": "1h"}]);
        server.post("/v1/check", &json!({"key": "k", "quotas": quotas})).status
    };
    assert_eq!([status(0), status(1 << 48), status((1 << 48) + 1)], [200, 200, 422]);
}

#[test]
fn the_description_of_the_admin_api_needs_a_token() {
    let config = admin_config("admin-described", "read");
    let server = start(&config);
    let address = admin_url(&server).strip_prefix("http://").unwrap().parse().unwrap();
    assert_eq!(request_with_headers(address, "GET", "/openapi.json", "", b"").status, 401);
    let line = format!("authorization: Bearer {TOKEN}\r\n");
    let document = request_with_headers(address, "GET", "/openapi.json", &line, b"").json();
    assert_eq!(
        paths(&document),
        [
            "/v1/audit",
            "/v1/changes",
            "/v1/live",
            "/v1/policies",
            "/v1/policies/{policy}",
            "/v1/policies/{policy}/keys/{key}",
            "/v1/policies/{policy}/keys/{key}/block",
            "/v1/policies/{policy}/keys/{key}/refund",
            "/v1/policies/{policy}/keys/{key}/reset",
            "/v1/policies/{policy}/mode",
            "/v1/policies/{policy}/quotas",
            "/v1/policies/{policy}/reset",
            "/v1/policies/{policy}/tiers/{tier}"
        ]
    );
}

/// Sends hundreds of valid and invalid requests generated from the description and checks each response against it.
fn assert_conforms(url: &str, operations: usize, more: &[&str]) {
    let tools = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../target/tools/schemathesis");
    assert!(tools.is_dir(), "`make deps` installs schemathesis into {}", tools.display());
    let mut fuzz = Command::new("python3");
    let settings = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/contract.toml");
    fuzz.args(["-m", "schemathesis.cli", "--config-file", settings, "run", &format!("{url}/openapi.json")])
        // The schema cannot express that `policy` and `quotas` exclude each other. contract.py calls the second check
        // itself.
        .args(["--checks", "all", "--exclude-checks", "positive_data_acceptance,negative_data_rejection"])
        .args(["--seed", "1", "--no-color"])
        .args(more)
        .env("PYTHONPATH", &tools)
        .env("SCHEMATHESIS_HOOKS", concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/contract.py"))
        .current_dir(std::env::temp_dir());
    let (code, out, err) = outcome(&mut fuzz);
    assert_eq!(code, 0, "{out}\n{err}");
    assert!(out.contains(&format!("Tested: {operations}")), "{out}");
}

#[test]
fn the_decision_api_conforms_to_its_description() {
    let config = config("fuzzed");
    let server = start(&config);
    assert_conforms(server.url(), 21, &[]);
}

#[test]
fn the_admin_api_conforms_to_its_description() {
    let config = admin_config("admin-fuzzed", "write");
    let server = start(&config);
    assert_conforms(admin_url(&server), 18, &["-H", &format!("Authorization: Bearer {TOKEN}")]);
}
