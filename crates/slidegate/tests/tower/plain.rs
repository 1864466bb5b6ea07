//! A hyper server without a framework, over a real socket.

use std::convert::Infallible;
use std::net::SocketAddr;

use bytes::Bytes;
use http::{Method, Request, Response};
use http_body::Body;
use http_body_util::{BodyExt, Empty};
use hyper_util::client::legacy::Client;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use slidegate::Policy;
use slidegate::tower::{Key, PeerAddress, RateLimitLayer};
use tokio::net::TcpListener;
use tower::{Layer, Service, ServiceExt};

use crate::services::{header, limiter, over, serve};

/// Serves each connection with the layer over [`serve`], and passes the peer's address on.
async fn start(quota: &str) -> SocketAddr {
    let layer = RateLimitLayer::over(limiter().0, Policy::parse("api", [quota]).unwrap());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let (stream, peer) = listener.accept().await.unwrap();
            let limited = layer.layer(tower::service_fn(serve));
            let service = tower::util::MapRequest::new(limited, move |mut request: Request<_>| {
                request.extensions_mut().insert(PeerAddress(peer));
                request
            });
            let connection = TokioIo::new(stream);
            tokio::spawn(async move {
                let server = auto::Builder::new(TokioExecutor::new());
                server.serve_connection(connection, TowerToHyperService::new(service)).await.unwrap();
            });
        }
    });
    address
}

async fn send(address: SocketAddr) -> Response<String> {
    let client = Client::builder(TokioExecutor::new()).build_http::<Empty<Bytes>>();
    let (parts, body) = client.get(format!("http://{address}/").parse().unwrap()).await.unwrap().into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    Response::from_parts(parts, String::from_utf8(body.to_vec()).unwrap())
}

#[tokio::test]
async fn a_plain_hyper_server_is_limited_by_its_peers() {
    let address = start("2/1m fixed-window").await;
    for left in [1, 0] {
        let response = send(address).await;
        assert_eq!((response.status().as_u16(), response.body().as_str()), (200, "served"));
        let limit = format!(r#""2/1m";r={left};t=60"#);
        assert_eq!(header(&response, "ratelimit"), Some(limit.as_str()));
    }
    let denied = send(address).await;
    assert_eq!((denied.status().as_u16(), header(&denied, "retry-after")), (429, Some("60")));
    assert_eq!(header(&denied, "content-type"), Some("application/problem+json"));
    let length = denied.body().len().to_string();
    assert_eq!(header(&denied, "content-length"), Some(length.as_str()), "not chunked");
    let problem: serde_json::Value = serde_json::from_str(denied.body()).unwrap();
    assert_eq!(problem["status"], 429);
}

/// Responds to some requests itself, as layers for CORS and timeouts do, with the same bound on bodies.
async fn respond<S, B: Default>(service: S, request: Request<()>) -> Response<B>
where
    S: Service<Request<()>, Response = Response<B>, Error = Infallible>,
{
    if request.method() == Method::OPTIONS {
        return Response::new(B::default());
    }
    service.oneshot(request).await.unwrap()
}

#[tokio::test]
async fn outer_layers_can_respond_themselves() {
    let layer = RateLimitLayer::over(limiter().0, Policy::parse("api", ["1/1m"]).unwrap()).key(Key::path());
    let service = over(layer);
    for (method, expected) in [(Method::OPTIONS, ""), (Method::GET, "served"), (Method::OPTIONS, "")] {
        let request = Request::builder().method(method).body(()).unwrap();
        let body = respond(service.clone(), request).await.into_body();
        assert_eq!(body.is_end_stream(), expected.is_empty());
        assert_eq!(body.collect().await.unwrap().to_bytes(), expected);
    }
}
