//! The shared memory budget of large request bodies.

use std::io::Write;
use std::net::TcpStream;

use serde_json::json;

use crate::harness::Response;
use crate::process::{ServeProcess, TempFile, slidegate};

/// A check that is padded to more than 100 kB.
fn large_body() -> String {
    format!("[{}{}]", json!({"policy": "api", "key": "a"}), " ".repeat(100_000))
}

fn check_with_large_body(server: &ServeProcess) -> Response {
    crate::harness::request(server.address(), "POST", "/v1/check", large_body().as_bytes())
}

/// Reserves as much of the budget as `large_body` needs: the last byte of the body never arrives.
fn hold_budget(server: &ServeProcess) -> TcpStream {
    let mut stream = TcpStream::connect(server.address()).unwrap();
    let head = "POST /v1/check HTTP/1.1\r\nhost: a\r\ncontent-length: 131072\r\n\r\n[";
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(&vec![b' '; 131_070]).unwrap();
    stream
}

#[test]
fn large_bodies_share_a_budget() {
    let config =
        TempFile::new("body-budget", "limits: {body_timeout: 1h}\npolicies: {api: {quotas: [1000000/1m]}}\n");
    let server =
        ServeProcess::start(slidegate().args(["serve", "--http", "127.0.0.1:0", "--config", config.path()]));
    assert_eq!(check_with_large_body(&server).json()[0]["allowed"], true);
    let mut holders: Vec<_> = (0..500).map(|_| hold_budget(&server)).collect();
    // A connection that met a full budget was rejected and holds nothing, so more than 500 may be necessary. 2000
    // always fill the budget.
    let response = loop {
        let response = check_with_large_body(&server);
        if response.status == 503 {
            break response;
        }
        holders.push(hold_budget(&server));
        assert!(holders.len() < 2000, "the budget is never exhausted");
    };
    assert_eq!(response.header("retry-after"), Some("1"));
    assert_eq!(response.json()["transient"], true, "{response:?}");
    assert_eq!(response.json()["may_have_counted"], false, "{response:?}");
    let small = server.check(&json!({"policy": "api", "key": "b"}));
    assert_eq!(small.decision()["allowed"], true, "small bodies need no budget");
    let metrics = server.get("/metrics").body;
    assert!(metrics.contains("slidegate_refusals_total{reason=\"busy\"}"), "{metrics}");
    drop(holders);
    while check_with_large_body(&server).status != 200 {}
}
