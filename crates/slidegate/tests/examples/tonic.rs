//! A gRPC client of the tonic example.

use tonic::Code;
use tonic::transport::Endpoint;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

use crate::process::{Example, run_shell};

#[tokio::test]
async fn a_denied_call_gets_a_retry_time() {
    let mut example = Example::start("tonic", &["127.0.0.1:0"]);
    let url = example.read_line("listening on ");
    let output = run_shell(&example.read_line("try: "));
    assert!(output.starts_with("HTTP/2 200") && output.contains("grpc-status: 0"), "{output}");
    assert!(output.contains("ratelimit: \"10/1m\";r=9;"), "{output}");

    let channel = Endpoint::from_shared(url).unwrap().connect().await.unwrap();
    let mut client = HealthClient::new(channel);
    let mut allowed = 1;
    let denied = loop {
        match client.check(HealthCheckRequest::default()).await {
            Ok(response) => assert!(response.metadata().contains_key("ratelimit")),
            Err(status) => break status,
        }
        allowed += 1;
        assert!(allowed < 100, "no call was denied");
    };
    assert!(allowed >= 10, "{allowed}");
    assert_eq!(denied.code(), Code::ResourceExhausted, "{denied}");
    let seconds = denied.metadata().get("retry-after").unwrap().to_str().unwrap();
    assert!((1..=120).contains(&seconds.parse::<u32>().unwrap()), "{seconds}");
}
