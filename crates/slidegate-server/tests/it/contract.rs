//! The description for programs, and whether the server does what it says.

use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;

use crate::process::{Serving, TempFile, outcome, slidegate};

fn start(config: &TempFile) -> Serving {
    Serving::start(slidegate().args(["serve", "--http", "127.0.0.1:0", "--config", config.path()]))
}

fn config(name: &str) -> TempFile {
    TempFile::new(name, "policies:\n  api: {quotas: [5/1h, 100/1d], tiers: {gold: {quotas: [50/1h]}}}\n")
}

/// All that a document refers to.
fn references(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(fields) => fields.iter().for_each(|(name, value)| match value {
            Value::String(to) if name == "$ref" => found.push(to.clone()),
            value => references(value, found),
        }),
        Value::Array(items) => items.iter().for_each(|item| references(item, found)),
        _ => {}
    }
}

#[test]
fn every_path_is_described_and_every_reference_leads_somewhere() {
    let config = config("described");
    let server = start(&config);
    let document = server.get("/openapi.json").json();
    let paths: Vec<&String> = document["paths"].as_object().unwrap().keys().collect();
    assert_eq!(
        paths,
        ["/healthz", "/metrics", "/readyz", "/v1/check", "/v1/peek", "/v1/refund", "/v1/reset"]
    );
    let mut found = Vec::new();
    references(&document, &mut found);
    assert!(found.len() > 20, "{found:?}");
    for to in found {
        assert!(document.pointer(to.strip_prefix('#').unwrap()).is_some(), "{to}");
    }
}

/// Hundreds of requests made from the description, good and bad: each is answered by what the description says.
#[test]
fn it_does_what_the_description_says() {
    let tools = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../target/tools/schemathesis");
    assert!(tools.is_dir(), "`make deps` puts schemathesis into {}", tools.display());
    let config = config("fuzzed");
    let server = start(&config);
    let mut fuzz = Command::new("python3");
    fuzz.args(["-m", "schemathesis.cli", "run", &format!("{}/openapi.json", server.url())])
        // That policy and quotas exclude each other cannot be described.
        .args(["--checks", "all", "--exclude-checks", "positive_data_acceptance"])
        .args(["--max-examples", "100", "--seed", "1", "--no-color"])
        .env("PYTHONPATH", &tools)
        .current_dir(std::env::temp_dir());
    let (code, out, err) = outcome(&mut fuzz);
    assert_eq!(code, 0, "{out}\n{err}");
    assert!(out.contains("Tested: 7"), "{out}");
}
