//! The outgoing client of the example, against a server of the test and against its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::Router;
use axum::http::StatusCode;
use axum::response::IntoResponse;
use axum::routing::get;

use crate::process::{Example, run_shell};

/// The server's retry time exceeds the client's maximum wait, so the test does not wait.
#[tokio::test]
async fn a_denying_server_gets_no_further_requests() {
    let requests = Arc::new(AtomicUsize::new(0));
    let handler = {
        let requests = Arc::clone(&requests);
        async move || match requests.fetch_add(1, Ordering::SeqCst) {
            0 | 1 => [("ratelimit", r#""theirs";r=1;t=3600"#)].into_response(),
            _ => (StatusCode::TOO_MANY_REQUESTS, [("retry-after", "3600")]).into_response(),
        }
    };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, Router::new().route("/", get(handler))).await });
    let lines =
        tokio::task::spawn_blocking(move || Example::start("outgoing", &[&url]).finish()).await.unwrap();

    assert_eq!(lines.len(), 12);
    assert_eq!(lines[0], r#"1: 200 OK, "theirs";r=1;t=3600"#);
    assert_eq!(lines[2], "3: 429 Too Many Requests, no rate limit header");
    assert!(lines[3].starts_with("4: not sent: the server requires a pause of "), "{}", lines[3]);
    assert_eq!(requests.load(Ordering::SeqCst), 3, "the client sends nothing during the pause");
}

/// The example's own server has a limit that the client does not know but respects.
#[test]
fn the_example_starts_a_server_by_default() {
    let mut example = Example::start("outgoing", &[]);
    let url = example.read_line("listening on ");
    assert_eq!(example.read_line("try: "), format!("curl -si {url}/"));
    assert!(example.read_line("1: ").starts_with(r#"200 OK, "5/2s";r="#));
    assert!(run_shell(&format!("curl -si {url}/")).starts_with("HTTP/1.1 "));
}
