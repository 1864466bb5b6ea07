//! Client that stays under another service's limit and follows its `Retry-After`.
//!
//! `cargo run --example outgoing` starts a local server that allows five requests in two seconds; `cargo run --example
//! outgoing -- http://example.com/` uses another server.

use std::error::Error;
use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use bytes::Bytes;
use http::{Request, Uri};
use http_body_util::Empty;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use slidegate::Limiter;
use slidegate::tower::{RateLimitLayer, WaitLayer};
use tower::{Layer, ServiceExt};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let uri: Uri = match std::env::args().nth(1) {
        Some(uri) => uri.parse()?,
        None => format!("http://{}/", start_strict_server().await?).parse()?,
    };
    // Assumes ten requests per second. If the server reports less, in `RateLimit` or `Retry-After`, all requests to its
    // host wait accordingly, each at most half a minute.
    let theirs = Limiter::in_memory("theirs", ["10/1s strict-window"])?;
    let wait = WaitLayer::new(theirs, Duration::from_secs(30));
    let client = wait.layer(Client::builder(TokioExecutor::new()).build_http::<Empty<Bytes>>());

    for number in 1..=12 {
        let request = Request::get(uri.clone()).body(Empty::new())?;
        match client.clone().oneshot(request).await {
            Ok(response) => {
                let left = response.headers().get("ratelimit").and_then(|value| value.to_str().ok());
                println!("{number}: {}, {}", response.status(), left.unwrap_or("no rate limit header"));
            }
            Err(error) => println!("{number}: {error}"),
        }
    }
    Ok(())
}

/// Starts a server with a stricter limit than the client assumes.
async fn start_strict_server() -> Result<SocketAddr, Box<dyn Error>> {
    let strict = RateLimitLayer::new(Limiter::in_memory("strict", ["5/2s strict-window"])?);
    let app = Router::new().route("/", get(async || "hello\n")).layer(strict);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    println!("listening on http://{address}");
    println!("try: curl -si http://{address}/");
    let service = app.into_make_service_with_connect_info::<SocketAddr>();
    tokio::spawn(async move { axum::serve(listener, service).await });
    Ok(address)
}
