//! Envoy's rate limit service, version 3: over gRPC, and as JSON over HTTP as envoyproxy/ratelimit has it.

mod body_timeout;
mod health;
mod json;
mod message;
mod metadata;
mod operations;
pub mod proto;
mod response;
mod response_fields;
mod service;

pub(crate) use self::json::{JsonRequest, JsonResponse};
pub(crate) use self::message::Message;
pub(crate) use self::operations::verbs;
pub(crate) use self::service::router;

use slidegate::Store;

use self::operations::Asked;
use self::proto::{RateLimitRequest, RateLimitResponse};
use crate::app::App;
use crate::request::Rejection;

/// Decides a request: all of its descriptors in one call of the store, each for itself.
pub(crate) async fn decide<S: Store>(
    app: &App<S>,
    request: &RateLimitRequest,
) -> Result<RateLimitResponse, Rejection> {
    let limits = app.envoy();
    let asked = Asked::new(&limits, request)?;
    asked.count_by_rule();
    let prepared = asked.prepared();
    let decisions = app.execute(&prepared).await;
    let mut known = Vec::with_capacity(decisions.len());
    for (prepared, decision) in prepared.iter().zip(decisions) {
        known.push(match decision {
            // What denies nobody fails nobody.
            Err(_) if prepared.is_shadow => None,
            decision => Some(decision?),
        });
    }
    Ok(response::answer(limits.settings(), request, &asked, known, app.clock().now_ms()))
}
