//! Envoy's rate limit service, version 3: over gRPC, and as JSON over HTTP as envoyproxy/ratelimit has it.

mod answer;
mod ask;
mod health;
mod json;
mod message;
mod patience;
pub mod proto;
mod service;
mod told;

pub(crate) use self::ask::verbs;
pub(crate) use self::json::{JsonRequest, JsonResponse};
pub(crate) use self::message::Message;
pub(crate) use self::service::router;

use slidegate::Store;

use self::ask::Asked;
use self::proto::{RateLimitRequest, RateLimitResponse};
use crate::app::App;
use crate::request::Refusal;

/// Decides a request: all of its descriptors in one call of the store, each for itself.
pub(crate) async fn decide<S: Store>(
    app: &App<S>,
    request: &RateLimitRequest,
) -> Result<RateLimitResponse, Refusal> {
    let domains = app.envoy();
    let asked = Asked::new(&domains, request)?;
    asked.count_by_rule();
    let prepared = asked.prepared();
    let decisions = app.decide_prepared(&prepared).await;
    let mut known = Vec::with_capacity(decisions.len());
    for (prepared, decision) in prepared.iter().zip(decisions) {
        known.push(match decision {
            // What denies nobody fails nobody.
            Err(_) if prepared.is_shadow => None,
            decision => Some(decision?),
        });
    }
    Ok(answer::answer(domains.settings, request, &asked, known, app.clock().now_ms()))
}
