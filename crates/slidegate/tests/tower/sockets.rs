//! A real axum server.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::routing::{get, post};
use http_body_util::BodyExt;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use slidegate::Policy;
use slidegate::store::{MemoryStore, StoreLimiter};
use slidegate::tower::{ClientAddress, Key, RateLimitLayer};

async fn start(router: Router) -> SocketAddr {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let service = router.into_make_service_with_connect_info::<SocketAddr>();
    tokio::spawn(async move { axum::serve(listener, service).await.unwrap() });
    address
}

fn layer(quota: &str) -> RateLimitLayer<MemoryStore> {
    let limiter = Arc::new(StoreLimiter::new(MemoryStore::new()));
    RateLimitLayer::over(limiter, Policy::parse("api", [quota]).unwrap())
}

async fn status(address: SocketAddr, path: &str, forwarded: Option<&str>) -> u16 {
    let mut request = http::Request::get(format!("http://{address}{path}"));
    if let Some(forwarded) = forwarded {
        request = request.header("x-forwarded-for", forwarded);
    }
    let client = Client::builder(TokioExecutor::new()).build_http::<Body>();
    client.request(request.body(Body::empty()).unwrap()).await.unwrap().status().as_u16()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_requests_are_admitted_up_to_the_limit() {
    let served = Arc::new(AtomicUsize::new(0));
    let handler = {
        let served = Arc::clone(&served);
        move || async move {
            served.fetch_add(1, Ordering::Relaxed);
        }
    };
    let address = start(Router::new().route("/", get(handler)).layer(layer("40/1d sliding-log"))).await;
    let tasks: Vec<_> = (0..100).map(|_| tokio::spawn(status(address, "/", None))).collect();
    let mut allowed = 0;
    for task in tasks {
        allowed += usize::from(task.await.unwrap() == 200);
    }
    assert_eq!((allowed, served.load(Ordering::Relaxed)), (40, 40));
}

#[tokio::test]
async fn routes_have_separate_limits_and_a_proxy_preserves_client_addresses() {
    let behind = || Key::address(ClientAddress::behind(["127.0.0.0/8".parse().unwrap()]));
    let router = Router::new()
        .route("/login", post(async || "in").get(async || "form"))
        .route_layer(layer("1/1d sliding-log").key(behind()))
        .route("/free", get(async || "free"));
    let address = start(router).await;
    assert_eq!(status(address, "/login", Some("203.0.113.1")).await, 200);
    assert_eq!(status(address, "/login", Some("6.6.6.6, 203.0.113.1")).await, 429, "spoofed on the left");
    assert_eq!(status(address, "/login", Some("203.0.113.2")).await, 200);
    for _ in 0..3 {
        assert_eq!(status(address, "/free", Some("203.0.113.1")).await, 200);
    }
}

#[tokio::test]
async fn nested_routers_use_the_full_path() {
    let users = || Router::new().route("/users/{id}", get(async || "user"));
    let nested = |key: Key| {
        let one = layer("1/1d sliding-log").key(key);
        // Both routers share one layer; only the full path distinguishes them.
        Router::new().nest("/a", users().layer(one.clone())).nest("/b", users().layer(one))
    };
    let table: [(Key, &[(&str, u16)]); 3] = [
        (Key::path(), &[("/a/users/1", 200), ("/b/users/1", 200), ("/a/users/2", 200), ("/a/users/1", 429)]),
        (
            Key::path_pattern(["/a/users/*", "/b/**"]),
            &[("/a/users/1", 200), ("/b/users/1", 200), ("/a/users/2", 429), ("/b/users/2", 429)],
        ),
        (
            Key::matched_path(),
            &[("/a/users/1", 200), ("/b/users/1", 200), ("/a/users/2", 429), ("/b/users/2", 429)],
        ),
    ];
    for (key, requests) in table {
        let address = start(nested(key)).await;
        for (path, expected) in requests {
            assert_eq!(status(address, path, None).await, *expected, "{path}");
        }
    }
}

#[tokio::test]
async fn rules_of_nested_routers_use_the_full_path() {
    let free = layer("1/1d sliding-log").skip(|request| request.path() == "/inner/free");
    let inner =
        Router::new().route("/free", get(async || "free")).route("/", get(async || "one")).layer(free);
    let address = start(Router::new().nest("/inner", inner)).await;
    for (path, expected) in [("/inner/free", 200), ("/inner", 200), ("/inner/free", 200), ("/inner", 429)] {
        assert_eq!(status(address, path, None).await, expected, "{path}");
    }
}

#[tokio::test]
async fn bodies_pass_unbuffered() {
    // The server echoes each chunk before the client sends the next, so a buffering layer would deadlock.
    let echo = post(async |body: Body| body);
    let address = start(Router::new().route("/echo", echo).layer(layer("10/1d"))).await;
    let (sender, receiver) =
        tokio::sync::mpsc::channel::<Result<http_body::Frame<Bytes>, std::convert::Infallible>>(1);
    let stream = http_body_util::StreamBody::new(tokio_stream(receiver));
    let client = Client::builder(TokioExecutor::new()).build_http();
    let request = http::Request::post(format!("http://{address}/echo")).body(stream).unwrap();
    let mut response = client.request(request).await.unwrap();
    for chunk in ["one", "two", "three"] {
        sender.send(Ok(http_body::Frame::data(Bytes::from(chunk)))).await.unwrap();
        let frame = response.frame().await.unwrap().unwrap();
        assert_eq!(frame.into_data().unwrap(), chunk);
    }
    drop(sender);
    assert!(response.frame().await.is_none());
}

fn tokio_stream<T>(mut receiver: tokio::sync::mpsc::Receiver<T>) -> impl futures_util::Stream<Item = T> {
    futures_util::stream::poll_fn(move |context| receiver.poll_recv(context))
}
