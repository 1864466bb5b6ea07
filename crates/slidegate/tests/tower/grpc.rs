//! A real tonic server with a real tonic client.

use slidegate::Policy;
use slidegate::store::Store;
use slidegate::tower::{Key, MissingKey, RateLimitLayer};
use tonic::metadata::MetadataMap;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Code, Request, Response, Status};
use tonic_health::pb::health_client::HealthClient;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};

use crate::services::{Manual, limiter};

async fn started<S: Store + 'static>(layer: RateLimitLayer<S>) -> HealthClient<Channel> {
    let incoming = TcpIncoming::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let url = format!("http://{}", incoming.local_addr().unwrap());
    let (_reporter, service) = tonic_health::server::health_reporter();
    let server = Server::builder().layer(layer).add_service(service);
    tokio::spawn(async move { server.serve_with_incoming(incoming).await.unwrap() });
    HealthClient::new(Endpoint::from_shared(url).unwrap().connect().await.unwrap())
}

fn layer(quota: &str) -> RateLimitLayer<Manual> {
    RateLimitLayer::over(limiter().0, Policy::parse("calls", [quota]).unwrap())
}

async fn call(client: &mut HealthClient<Channel>) -> Result<Response<HealthCheckResponse>, Status> {
    client.check(HealthCheckRequest::default()).await
}

fn text<'a>(metadata: &'a MetadataMap, name: &str) -> Option<&'a str> {
    metadata.get(name).map(|value| value.to_str().unwrap())
}

#[tokio::test]
async fn a_denial_is_resource_exhausted_with_a_retry_time() {
    let mut client = started(layer("2/1m fixed-window")).await;
    for left in [1, 0] {
        let response = call(&mut client).await.unwrap();
        assert_eq!(text(response.metadata(), "ratelimit-policy"), Some(r#""2/1m";q=2;w=60"#));
        let limit = format!(r#""2/1m";r={left};t=60"#);
        assert_eq!(text(response.metadata(), "ratelimit"), Some(limit.as_str()));
        assert_eq!(text(response.metadata(), "retry-after"), None);
        assert_eq!(response.into_inner().status, 1, "the service is up");
    }
    let denied = call(&mut client).await.unwrap_err();
    assert_eq!(denied.code(), Code::ResourceExhausted);
    assert_eq!(denied.message(), "too many requests, try again in 60000 ms");
    assert_eq!(text(denied.metadata(), "retry-after"), Some("60"));
    assert_eq!(text(denied.metadata(), "ratelimit"), Some(r#""2/1m";r=0;t=60"#));
    // A stream is denied before it begins.
    let denied = client.watch(HealthCheckRequest::default()).await.unwrap_err();
    assert_eq!(
        (denied.code(), text(denied.metadata(), "retry-after")),
        (Code::ResourceExhausted, Some("60"))
    );
}

#[tokio::test]
async fn stream_messages_pass_unbuffered() {
    let mut client = started(layer("1/1m fixed-window")).await;
    let mut stream = client.watch(HealthCheckRequest::default()).await.unwrap();
    assert_eq!(text(stream.metadata(), "ratelimit"), Some(r#""1/1m";r=0;t=60"#));
    // The stream never ends, so a buffering layer would never pass the first message.
    assert_eq!(stream.get_mut().message().await.unwrap().unwrap().status, 1);
}

#[tokio::test]
async fn callers_are_distinguished_by_their_metadata() {
    let by_token = Key::header(http::HeaderName::from_static("x-token"));
    let mut client =
        started(layer("1/1m fixed-window").key(by_token).missing_key(MissingKey::Rejected)).await;
    assert_eq!(call(&mut client).await.unwrap_err().code(), Code::InvalidArgument, "the call has no token");
    for (token, expected) in [("a", Code::Ok), ("b", Code::Ok), ("a", Code::ResourceExhausted)] {
        let mut request = Request::new(HealthCheckRequest::default());
        request.metadata_mut().insert("x-token", token.parse().unwrap());
        let code = client.check(request).await.map_or_else(|status| status.code(), |_| Code::Ok);
        assert_eq!(code, expected, "{token}");
    }
}
