//! A server for the client of the example.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::Router;
use axum::http::StatusCode;
use axum::response::IntoResponse;
use axum::routing::get;

use crate::process::{Example, typed};

/// So that nothing has to wait: this server wants to be left alone for longer than the client has patience.
#[tokio::test]
async fn a_server_that_says_no_is_not_asked_again() {
    let asked = Arc::new(AtomicUsize::new(0));
    let answer = {
        let asked = Arc::clone(&asked);
        async move || match asked.fetch_add(1, Ordering::SeqCst) {
            0 | 1 => [("ratelimit", r#""theirs";r=1;t=3600"#)].into_response(),
            _ => (StatusCode::TOO_MANY_REQUESTS, [("retry-after", "3600")]).into_response(),
        }
    };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, Router::new().route("/", get(answer))).await });
    let lines =
        tokio::task::spawn_blocking(move || Example::start("outgoing", &[&url]).ends()).await.unwrap();

    assert_eq!(lines.len(), 12);
    assert_eq!(lines[0], r#"1: 200 OK, "theirs";r=1;t=3600"#);
    assert_eq!(lines[2], "3: 429 Too Many Requests, no rate limit header");
    assert!(lines[3].starts_with("4: not sent: the server requires a pause of "), "{}", lines[3]);
    assert_eq!(asked.load(Ordering::SeqCst), 3, "nobody was asked in vain");
}

/// With a server of its own, whose limit it does not know but honours.
#[test]
fn it_has_a_server_to_try() {
    let mut example = Example::start("outgoing", &[]);
    let url = example.says("listening on ");
    assert_eq!(example.says("try: "), format!("curl -si {url}/"));
    assert!(example.says("1: ").starts_with(r#"200 OK, "5/2s";r="#));
    assert!(typed(&format!("curl -si {url}/")).starts_with("HTTP/1.1 "));
}
