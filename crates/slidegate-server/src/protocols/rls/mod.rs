//! Envoy's rate limit service, version 3, over gRPC, and its JSON form, compatible with envoyproxy/ratelimit.

mod body_timeout;
mod health;
pub(crate) mod http;
mod json;
mod message;
mod metadata;
mod operations;
pub mod proto;
mod response;
mod response_fields;
mod service;
mod verdict;

use slidegate::store::Store;
use slidegate_engine::{Engine, Rejection};

pub(crate) use self::json::{JsonRequest, JsonResponse};
use self::operations::RequestLimits;
use self::proto::{RateLimitRequest, RateLimitResponse};
pub(crate) use self::service::router;

/// Decides a request. All descriptors are decided in one call of the store, independently of each other.
pub(crate) async fn decide<S: Store>(
    engine: &Engine<S>,
    request: &RateLimitRequest,
) -> Result<RateLimitResponse, Rejection> {
    let domains = engine.envoy();
    let limits = RequestLimits::find(&domains, request)?;
    limits.count_constants();
    let prepared = limits.prepared();
    let responses = engine.decide(&prepared).await;
    let mut decisions = Vec::with_capacity(responses.len());
    for (prepared, response) in prepared.iter().zip(responses) {
        decisions.push(match response {
            // A limit in shadow mode never denies, so its failure does not reject the request.
            Err(_) if prepared.is_shadow => None,
            response => Some(response?),
        });
    }
    Ok(response::build(domains.settings(), request, &limits, decisions, engine.clock().now_ms()))
}
