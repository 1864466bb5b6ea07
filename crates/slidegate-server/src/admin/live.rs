//! Decisions and the keys that stand out, for a screen that is looked at.

use axum::extract::State;
use axum::response::{IntoResponse, Json, Response};
use serde::{Deserialize, Serialize};
use slidegate::resilience::Mode;
use utoipa::ToSchema;

use super::changing::Desked;
use super::parts::InQuery;
use crate::hitters::Hitter;
use crate::report::Reporting;
use crate::tally::{self, Outcomes};

/// How many keys are told unless asked otherwise, and at the most.
const USUAL: usize = 10;
const MOST: usize = 100;

/// How many keys.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Shown {
    keys: Option<usize>,
}

/// How it is doing at one moment.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct LiveAnswer {
    /// When that was, in milliseconds since 1970.
    pub(crate) now_ms: u64,
    /// What is done with requests to the store, if it is elsewhere.
    pub(crate) store: Option<String>,
    /// Why it did not decide when it was last asked, if it did not.
    pub(crate) store_error: Option<String>,
    /// How many keys the memory store holds, if it is one.
    pub(crate) memory_keys: Option<u64>,
    /// Why the file is not the one in force, if it is not.
    pub(crate) config_error: Option<String>,
    /// How many changes are in force.
    pub(crate) changes: usize,
    pub(crate) policies: Vec<PolicyLive>,
    /// Who asked most in the last one to two minutes.
    pub(crate) busiest: Vec<Hitter>,
    /// Who was denied most.
    pub(crate) most_denied: Vec<Hitter>,
}

/// A policy's decisions.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct PolicyLive {
    pub(crate) name: String,
    pub(crate) mode: String,
    pub(crate) since_start: Outcomes,
    pub(crate) last_minute: Outcomes,
    pub(crate) advice: Option<String>,
}

pub(super) async fn live(State(desk): State<Desked>, InQuery(Shown { keys }): InQuery<Shown>) -> Response {
    let app = desk.app();
    let (now_ms, keys) = (app.clock().now_ms(), keys.unwrap_or(USUAL).min(MOST));
    let report = app.store().report();
    let last_minute = desk.history().last_minute();
    let policy = |(name, since_start): (String, Outcomes)| {
        let last_minute = last_minute.get(&name).copied().unwrap_or_default();
        let mode = app.store().of(&name).mode;
        let is_off = mode == Mode::Off;
        PolicyLive {
            mode: mode.name().to_owned(),
            since_start,
            last_minute,
            advice: tally::advice(last_minute).filter(|_| !is_off).map(str::to_owned),
            name,
        }
    };
    // What is no longer there is not shown, though it is still counted.
    let policies = app.policies();
    let is_shown = |(name, _): &(String, Outcomes)| {
        let is_busy = last_minute.get(name).is_some_and(|live| *live != Outcomes::default());
        is_busy || policies.names().any(|known| known == name)
    };
    Json(LiveAnswer {
        now_ms,
        store: report.breaker.map(str::to_owned),
        store_error: report.failure.map(|failure| failure.error.to_string()),
        memory_keys: report.memory.map(|memory| memory.keys),
        config_error: app.config_error(),
        changes: desk.in_force().len(),
        policies: tally::totals().into_iter().filter(is_shown).map(policy).collect(),
        busiest: app.hitters().busiest(keys, now_ms),
        most_denied: app.hitters().most_denied(keys, now_ms),
    })
    .into_response()
}
