//! A client that stays under somebody else's limit, and waits when it is told to.
//!
//! `cargo run --example outgoing` asks a server of its own, which allows five in two seconds;
//! `cargo run --example outgoing -- http://example.com/` asks somebody else.

use std::error::Error;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use bytes::Bytes;
use http::{Request, Uri};
use http_body_util::Empty;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use slidegate::tower::{RateLimitLayer, WaitLayer};
use slidegate::{Limiter, MemoryStore, Policy};
use tower::{Layer, ServiceExt};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let uri: Uri = match std::env::args().nth(1) {
        Some(uri) => uri.parse()?,
        None => format!("http://{}/", somebody_else().await?).parse()?,
    };
    // We believe that ten in a second are welcome. If the server says otherwise, in `RateLimit` or `Retry-After`,
    // whatever goes to the same host waits for as long as it says; but nothing waits longer than half a minute.
    let limiter = Arc::new(Limiter::new(MemoryStore::new()));
    let policy = Policy::parse("theirs", ["10/1s strict-window"])?;
    let polite = WaitLayer::new(limiter, policy, Duration::from_secs(30));
    let client = polite.layer(Client::builder(TokioExecutor::new()).build_http::<Empty<Bytes>>());

    for number in 1..=12 {
        let request = Request::get(uri.clone()).body(Empty::new())?;
        match client.clone().oneshot(request).await {
            Ok(response) => {
                let left = response.headers().get("ratelimit").and_then(|value| value.to_str().ok());
                println!("{number}: {}, {}", response.status(), left.unwrap_or("nothing said"));
            }
            Err(error) => println!("{number}: {error}"),
        }
    }
    Ok(())
}

/// A server that is stricter than we think.
async fn somebody_else() -> Result<SocketAddr, Box<dyn Error>> {
    let limiter = Arc::new(Limiter::new(MemoryStore::new()));
    let strict = RateLimitLayer::new(limiter, Policy::parse("strict", ["5/2s strict-window"])?);
    let app = Router::new().route("/", get(async || "hello\n")).layer(strict);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    println!("listening on http://{address}");
    println!("try: curl -si http://{address}/");
    let service = app.into_make_service_with_connect_info::<SocketAddr>();
    tokio::spawn(async move { axum::serve(listener, service).await });
    Ok(address)
}
