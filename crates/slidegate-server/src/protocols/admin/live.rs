//! Live view: decisions, store state and heavy hitters.

use axum::extract::State;
use axum::response::{IntoResponse, Json, Response};
use serde::{Deserialize, Serialize};
use slidegate::resilience::Mode;
use slidegate_engine::StatusSource;
use slidegate_engine::decision_counts::{self, Outcomes};
use slidegate_engine::heavy_hitters::HeavyHitter;
use utoipa::ToSchema;

use super::edit::SharedController;
use super::extract::QueryParams;

/// Number of keys in each list, by default and at most.
const DEFAULT_KEYS: usize = 10;
const MAX_KEYS: usize = 100;

/// Query parameters.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LiveParams {
    keys: Option<usize>,
}

/// State of the service.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct LiveResponse {
    /// Time of the response, in milliseconds since 1970.
    pub(crate) now_ms: u64,
    /// State of the circuit breaker, if the store is remote.
    pub(crate) store: Option<String>,
    /// Error of the last operation of the store, if it failed.
    pub(crate) store_error: Option<String>,
    /// Number of keys in the memory store, if the store is memory.
    pub(crate) memory_keys: Option<u64>,
    /// Error of the configuration file, if the last reload failed.
    pub(crate) config_error: Option<String>,
    /// Number of changes in force.
    pub(crate) changes: usize,
    pub(crate) policies: Vec<PolicyLive>,
    /// Keys with the most requests in the last one to two minutes.
    pub(crate) busiest: Vec<HeavyHitter>,
    /// Keys with the most denials in the last one to two minutes.
    pub(crate) most_denied: Vec<HeavyHitter>,
}

/// Decisions of a policy.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct PolicyLive {
    pub(crate) name: String,
    pub(crate) mode: String,
    pub(crate) since_start: Outcomes,
    pub(crate) last_minute: Outcomes,
    pub(crate) advice: Option<String>,
}

pub(super) async fn live(
    State(controller): State<SharedController>,
    QueryParams(LiveParams { keys }): QueryParams<LiveParams>,
) -> Response {
    let engine = controller.engine();
    let (now_ms, keys) = (engine.clock().now_ms(), keys.unwrap_or(DEFAULT_KEYS).min(MAX_KEYS));
    let report = engine.store().status();
    let last_minute = controller.history().last_minute();
    let policy = |(name, since_start): (String, Outcomes)| {
        let last_minute = last_minute.get(&name).copied().unwrap_or_default();
        let mode = engine.store().switch_of(&name).mode;
        let is_off = mode == Mode::Off;
        PolicyLive {
            mode: mode.name().to_owned(),
            since_start,
            last_minute,
            advice: decision_counts::advice(last_minute).filter(|_| !is_off).map(str::to_owned),
            name,
        }
    };
    // Hides policies that no longer exist and had no decisions in the last minute. Their counters remain.
    let policies = engine.policies();
    let is_shown = |(name, _): &(String, Outcomes)| {
        let is_busy = last_minute.get(name).is_some_and(|live| *live != Outcomes::default());
        is_busy || policies.names().any(|known| known == name)
    };
    Json(LiveResponse {
        now_ms,
        store: report.breaker.map(str::to_owned),
        store_error: report.failure.map(|failure| failure.error.to_string()),
        memory_keys: report.memory.map(|memory| memory.keys),
        config_error: engine.readiness().config_error(),
        changes: controller.in_force().len(),
        policies: decision_counts::totals().into_iter().filter(is_shown).map(policy).collect(),
        busiest: engine.heavy_hitters().busiest(keys, now_ms),
        most_denied: engine.heavy_hitters().most_denied(keys, now_ms),
    })
    .into_response()
}
