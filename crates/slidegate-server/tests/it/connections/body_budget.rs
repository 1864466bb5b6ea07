//! Many at once who say much.

use std::io::Write;
use std::net::TcpStream;

use serde_json::json;

use crate::harness::Response;
use crate::process::{ServeProcess, TempFile, slidegate};

/// With as much before it as makes it large.
fn large() -> String {
    format!("[{}{}]", json!({"policy": "api", "key": "a"}), " ".repeat(100_000))
}

fn ask(server: &ServeProcess) -> Response {
    crate::harness::request(server.address(), "POST", "/v1/check", large().as_bytes())
}

/// One more who keeps as much room as `large` needs: the last byte is missing.
fn stay(server: &ServeProcess) -> TcpStream {
    let mut stream = TcpStream::connect(server.address()).unwrap();
    let head = "POST /v1/check HTTP/1.1\r\nhost: a\r\ncontent-length: 131072\r\n\r\n[";
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(&vec![b' '; 131_070]).unwrap();
    stream
}

#[test]
fn large_bodies_have_only_so_much_room_together() {
    let config =
        TempFile::new("crowd", "limits: {body_timeout: 1h}\npolicies: {api: {quotas: [1000000/1m]}}\n");
    let server =
        ServeProcess::start(slidegate().args(["serve", "--http", "127.0.0.1:0", "--config", config.path()]));
    assert_eq!(ask(&server).json()[0]["allowed"], true);
    let mut crowd: Vec<_> = (0..500).map(|_| stay(&server)).collect();
    // Whoever came while somebody else asked may have found no room and gone, so there may have to be more of them; if there
    // is no end to it, they are not the crowd that they should be.
    let response = loop {
        let response = ask(&server);
        if response.status == 503 {
            break response;
        }
        crowd.push(stay(&server));
        assert!(crowd.len() < 2000, "there is always room for one more");
    };
    assert_eq!(response.header("retry-after"), Some("1"));
    assert_eq!(response.json()["transient"], true, "{response:?}");
    assert_eq!(response.json()["may_have_counted"], false, "{response:?}");
    let small = server.check(&json!({"policy": "api", "key": "b"}));
    assert_eq!(small.decision()["allowed"], true, "whoever says little is answered");
    let metrics = server.get("/metrics").body;
    assert!(metrics.contains("slidegate_refusals_total{reason=\"busy\"}"), "{metrics}");
    drop(crowd);
    while ask(&server).status != 200 {}
}
