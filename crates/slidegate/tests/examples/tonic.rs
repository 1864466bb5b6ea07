//! A gRPC client of the example.

use tonic::Code;
use tonic::transport::Endpoint;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

use crate::process::{Example, typed};

#[tokio::test]
async fn who_calls_too_often_is_told_when_to_come_back() {
    let mut example = Example::start("tonic", &["127.0.0.1:0"]);
    let url = example.says("listening on ");
    let typed = typed(&example.says("try: "));
    assert!(typed.starts_with("HTTP/2 200") && typed.contains("grpc-status: 0"), "{typed}");
    assert!(typed.contains("ratelimit: \"10/1m\";r=9;"), "{typed}");

    let channel = Endpoint::from_shared(url).unwrap().connect().await.unwrap();
    let mut client = HealthClient::new(channel);
    let mut allowed = 1;
    let denied = loop {
        match client.check(HealthCheckRequest::default()).await {
            Ok(response) => assert!(response.metadata().contains_key("ratelimit")),
            Err(status) => break status,
        }
        allowed += 1;
        assert!(allowed < 100, "nobody says no");
    };
    assert!(allowed >= 10, "{allowed}");
    assert_eq!(denied.code(), Code::ResourceExhausted, "{denied}");
    let seconds = denied.metadata().get("retry-after").unwrap().to_str().unwrap();
    assert!((1..=120).contains(&seconds.parse::<u32>().unwrap()), "{seconds}");
}
