//! Endpoints of policies: their effective configuration, decisions and changes.

use std::collections::BTreeMap;

use axum::Extension;
use axum::body::Bytes;
use axum::extract::State;
use axum::response::{IntoResponse, Json, Response};
use serde::Serialize;
use slidegate::Policy;
use slidegate_config::PolicyEntry;
use slidegate_engine::Rejection;
use slidegate_engine::changes::{Change, ChangeController, Part, Setting, Subject};
use slidegate_engine::decision_counts::{self, Outcomes};
use utoipa::ToSchema;

use super::auth::Caller;
use super::body::{self, ChangeFields};
use super::edit::{self, SharedController};
use super::extract::{PathParams, RawBody};
use crate::protocols::http::Problem;

/// Effective configuration and decisions of a policy.
#[derive(Serialize, ToSchema)]
pub(super) struct PolicyResponse {
    name: String,
    mode: &'static str,
    quotas: Vec<String>,
    tiers: BTreeMap<String, Vec<String>>,
    /// Number of keys with an override.
    overrides: usize,
    /// Changes in force.
    changes: Vec<Change>,
    last_minute: OutcomeStats,
    since_start: OutcomeStats,
    /// Hint about the limit, from the share of denials in the last minute.
    advice: Option<&'static str>,
}

/// Number of decisions by outcome, and the share of denials.
#[derive(Serialize, ToSchema)]
struct OutcomeStats {
    #[serde(flatten)]
    outcomes: Outcomes,
    denied_percent: Option<f64>,
}

impl From<Outcomes> for OutcomeStats {
    fn from(outcomes: Outcomes) -> Self {
        Self { outcomes, denied_percent: outcomes.denied_percent() }
    }
}

/// Decision counts and changes of all policies.
struct Snapshot {
    last_minute: BTreeMap<String, Outcomes>,
    since_start: BTreeMap<String, Outcomes>,
    changes: Vec<Change>,
}

impl Snapshot {
    fn of(controller: &ChangeController) -> Self {
        Self {
            last_minute: controller.history().last_minute(),
            since_start: decision_counts::totals(),
            changes: controller.in_force(),
        }
    }

    fn response(&self, controller: &ChangeController, entry: &PolicyEntry) -> PolicyResponse {
        let name = entry.policy.name();
        let outcomes_of =
            |outcomes: &BTreeMap<String, Outcomes>| outcomes.get(name).copied().unwrap_or_default();
        let last_minute = outcomes_of(&self.last_minute);
        PolicyResponse {
            name: name.to_owned(),
            mode: controller.engine().store().switch_of(name).mode.name(),
            quotas: quotas(&entry.policy),
            tiers: entry.tiers.iter().map(|(tier, policy)| (tier.clone(), quotas(policy))).collect(),
            overrides: entry.overrides.len(),
            changes: self.changes.iter().filter(|change| change.subject.policy == name).cloned().collect(),
            last_minute: last_minute.into(),
            since_start: outcomes_of(&self.since_start).into(),
            advice: decision_counts::advice(last_minute),
        }
    }
}

fn quotas(policy: &Policy) -> Vec<String> {
    policy.quotas().iter().map(ToString::to_string).collect()
}

pub(super) async fn list(State(controller): State<SharedController>) -> Response {
    let (policies, snapshot) = (controller.engine().policies(), Snapshot::of(&controller));
    let responses: Vec<_> = policies.entries().map(|entry| snapshot.response(&controller, entry)).collect();
    Json(responses).into_response()
}

pub(super) async fn get(
    State(controller): State<SharedController>,
    PathParams(name): PathParams<String>,
) -> Response {
    let policies = controller.engine().policies();
    match policies.entry(&name) {
        Ok(entry) => Json(Snapshot::of(&controller).response(&controller, entry)).into_response(),
        Err(rejection) => Problem::from(rejection).into_response(),
    }
}

/// Returns the setting that the endpoint changes. Rejects bodies without it, and bodies with another setting.
pub(super) fn sole_setting<T>(
    fields: &ChangeFields,
    field: &'static str,
    value: impl Fn(&ChangeFields) -> Option<T>,
) -> Result<T, Rejection> {
    let given = [
        ("mode", fields.mode.is_some()),
        ("quotas", fields.quotas.is_some()),
        ("tier", fields.tier.is_some()),
    ];
    if let Some((other, _)) = given.into_iter().find(|(name, is_given)| *is_given && *name != field) {
        return Err(Rejection::out_of_range(
            other,
            format!("is not a setting of this endpoint; give {field}"),
        ));
    }
    value(fields).ok_or_else(|| Rejection::out_of_range(field, "is missing"))
}

async fn put(
    controller: &ChangeController,
    caller: Caller,
    subject: Subject,
    body: &Bytes,
    field: &'static str,
) -> Response {
    let decode = || -> Result<(ChangeFields, Setting), Rejection> {
        let fields: ChangeFields = body::read(body)?;
        let setting = match field {
            "mode" => Setting::Mode(sole_setting(&fields, field, |fields| fields.mode.clone())?),
            _ => Setting::Quotas(sole_setting(&fields, field, |fields| fields.quotas.clone())?),
        };
        Ok((fields, setting))
    };
    match decode() {
        Ok((fields, setting)) => edit::put(controller, caller, subject, &fields, setting).await,
        Err(rejection) => Problem::from(rejection).into_response(),
    }
}

pub(super) async fn put_mode(
    State(controller): State<SharedController>,
    Extension(caller): Extension<Caller>,
    PathParams(policy): PathParams<String>,
    RawBody(body): RawBody,
) -> Response {
    put(&controller, caller, Subject { policy, part: Part::Mode }, &body, "mode").await
}

pub(super) async fn remove_mode(
    State(controller): State<SharedController>,
    Extension(caller): Extension<Caller>,
    PathParams(policy): PathParams<String>,
) -> Response {
    edit::remove(&controller, caller, Subject { policy, part: Part::Mode }).await
}

pub(super) async fn put_quotas(
    State(controller): State<SharedController>,
    Extension(caller): Extension<Caller>,
    PathParams(policy): PathParams<String>,
    RawBody(body): RawBody,
) -> Response {
    put(&controller, caller, Subject { policy, part: Part::Quotas }, &body, "quotas").await
}

pub(super) async fn remove_quotas(
    State(controller): State<SharedController>,
    Extension(caller): Extension<Caller>,
    PathParams(policy): PathParams<String>,
) -> Response {
    edit::remove(&controller, caller, Subject { policy, part: Part::Quotas }).await
}

pub(super) async fn put_tier(
    State(controller): State<SharedController>,
    Extension(caller): Extension<Caller>,
    PathParams((policy, tier)): PathParams<(String, String)>,
    RawBody(body): RawBody,
) -> Response {
    put(&controller, caller, Subject { policy, part: Part::Tier(tier) }, &body, "quotas").await
}

pub(super) async fn remove_tier(
    State(controller): State<SharedController>,
    Extension(caller): Extension<Caller>,
    PathParams((policy, tier)): PathParams<(String, String)>,
) -> Response {
    edit::remove(&controller, caller, Subject { policy, part: Part::Tier(tier) }).await
}
