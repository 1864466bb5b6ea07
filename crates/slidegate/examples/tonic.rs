//! gRPC service with ten calls a minute per client. Excess calls fail with `RESOURCE_EXHAUSTED` and `retry-after` in
//! the metadata.
//!
//! Run `cargo run --example tonic`, optionally with an address (`-- 127.0.0.1:50051`). The example uses gRPC's health
//! service, because clients for it are common; any other service is limited in the same way.

use std::error::Error;

use slidegate::Limiter;
use slidegate::tower::RateLimitLayer;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    // Counts by client address, which tonic provides.
    let layer = RateLimitLayer::new(Limiter::in_memory("calls", ["10/1m"])?);
    let (_reporter, service) = tonic_health::server::health_reporter();

    let address = std::env::args().nth(1).unwrap_or("127.0.0.1:0".to_owned());
    let incoming = TcpIncoming::bind(address.parse()?)?;
    let address = incoming.local_addr()?;
    println!("listening on http://{address}");
    // Five zeroes are an empty message.
    println!(
        r"try: printf '\0\0\0\0\0' | curl -si --http2-prior-knowledge http://{address}/grpc.health.v1.Health/Check -H 'content-type: application/grpc' --data-binary @- --output -"
    );
    Server::builder().layer(layer).add_service(service).serve_with_incoming(incoming).await?;
    Ok(())
}
