//! What is in force, and how it is doing.

use std::collections::BTreeMap;

use axum::Extension;
use axum::body::Bytes;
use axum::extract::State;
use axum::response::{IntoResponse, Json, Response};
use serde::Serialize;
use slidegate::Policy;
use utoipa::ToSchema;

use super::auth::Who;
use super::body::{self, ChangeFields};
use super::changing::{self, Desked};
use super::parts::{InBody, InPath};
use crate::changes::{Change, Desk, Part, Subject, What};
use crate::http::Problem;
use crate::policies::PolicyEntry;
use crate::request::Refusal;
use crate::tally::{self, Outcomes};

/// A policy as it is in force.
#[derive(Serialize, ToSchema)]
pub(super) struct PolicyAnswer {
    name: String,
    mode: &'static str,
    quotas: Vec<String>,
    tiers: BTreeMap<String, Vec<String>>,
    /// How many keys have limits of their own.
    overrides: usize,
    /// What differs from the file.
    changes: Vec<Change>,
    last_minute: Live,
    since_start: Live,
    /// What the share of denials says, as a rule of thumb.
    advice: Option<&'static str>,
}

/// How often it ended in which way.
#[derive(Serialize, ToSchema)]
struct Live {
    #[serde(flatten)]
    outcomes: Outcomes,
    denied_percent: Option<f64>,
}

impl From<Outcomes> for Live {
    fn from(outcomes: Outcomes) -> Self {
        Self { outcomes, denied_percent: outcomes.denied_percent() }
    }
}

/// The numbers that go with the answers.
struct Numbers {
    last_minute: BTreeMap<String, Outcomes>,
    since_start: BTreeMap<String, Outcomes>,
    changes: Vec<Change>,
}

impl Numbers {
    fn of(desk: &Desk) -> Self {
        Self {
            last_minute: desk.history().last_minute(),
            since_start: tally::totals(),
            changes: desk.in_force(),
        }
    }

    fn answer(&self, desk: &Desk, entry: &PolicyEntry) -> PolicyAnswer {
        let name = entry.policy.name();
        let of = |outcomes: &BTreeMap<String, Outcomes>| outcomes.get(name).copied().unwrap_or_default();
        let last_minute = of(&self.last_minute);
        PolicyAnswer {
            name: name.to_owned(),
            mode: desk.app().store().of(name).mode.name(),
            quotas: quotas(&entry.policy),
            tiers: entry.tiers.iter().map(|(tier, policy)| (tier.clone(), quotas(policy))).collect(),
            overrides: entry.overrides.len(),
            changes: self.changes.iter().filter(|change| change.subject.policy == name).cloned().collect(),
            last_minute: last_minute.into(),
            since_start: of(&self.since_start).into(),
            advice: tally::advice(last_minute),
        }
    }
}

fn quotas(policy: &Policy) -> Vec<String> {
    policy.quotas().iter().map(ToString::to_string).collect()
}

pub(super) async fn list(State(desk): State<Desked>) -> Response {
    let (policies, numbers) = (desk.app().policies(), Numbers::of(&desk));
    let answers: Vec<_> = policies.entries().map(|entry| numbers.answer(&desk, entry)).collect();
    Json(answers).into_response()
}

pub(super) async fn one(State(desk): State<Desked>, InPath(name): InPath<String>) -> Response {
    let policies = desk.app().policies();
    match policies.source(&name) {
        Ok(entry) => Json(Numbers::of(&desk).answer(&desk, entry)).into_response(),
        Err(refusal) => Problem::from(refusal).into_response(),
    }
}

/// What a body says of one thing, and of nothing else.
pub(super) fn only<T>(
    fields: &ChangeFields,
    field: &'static str,
    what: impl Fn(&ChangeFields) -> Option<T>,
) -> Result<T, Refusal> {
    let given = [
        ("mode", fields.mode.is_some()),
        ("quotas", fields.quotas.is_some()),
        ("tier", fields.tier.is_some()),
    ];
    if let Some((other, _)) = given.into_iter().find(|(name, is_given)| *is_given && *name != field) {
        return Err(Refusal::out_of_range(other, format!("does not belong here; give {field}")));
    }
    what(fields).ok_or_else(|| Refusal::out_of_range(field, "is missing"))
}

async fn put(desk: &Desk, who: Who, subject: Subject, body: &Bytes, field: &'static str) -> Response {
    let read = || -> Result<(ChangeFields, What), Refusal> {
        let fields: ChangeFields = body::read(body)?;
        let what = match field {
            "mode" => What::Mode(only(&fields, field, |fields| fields.mode.clone())?),
            _ => What::Quotas(only(&fields, field, |fields| fields.quotas.clone())?),
        };
        Ok((fields, what))
    };
    match read() {
        Ok((fields, what)) => changing::put(desk, who, subject, &fields, what).await,
        Err(refusal) => Problem::from(refusal).into_response(),
    }
}

pub(super) async fn put_mode(
    State(desk): State<Desked>,
    Extension(who): Extension<Who>,
    InPath(policy): InPath<String>,
    InBody(body): InBody,
) -> Response {
    put(&desk, who, Subject { policy, part: Part::Mode }, &body, "mode").await
}

pub(super) async fn remove_mode(
    State(desk): State<Desked>,
    Extension(who): Extension<Who>,
    InPath(policy): InPath<String>,
) -> Response {
    changing::remove(&desk, who, Subject { policy, part: Part::Mode }).await
}

pub(super) async fn put_quotas(
    State(desk): State<Desked>,
    Extension(who): Extension<Who>,
    InPath(policy): InPath<String>,
    InBody(body): InBody,
) -> Response {
    put(&desk, who, Subject { policy, part: Part::Quotas }, &body, "quotas").await
}

pub(super) async fn remove_quotas(
    State(desk): State<Desked>,
    Extension(who): Extension<Who>,
    InPath(policy): InPath<String>,
) -> Response {
    changing::remove(&desk, who, Subject { policy, part: Part::Quotas }).await
}

pub(super) async fn put_tier(
    State(desk): State<Desked>,
    Extension(who): Extension<Who>,
    InPath((policy, tier)): InPath<(String, String)>,
    InBody(body): InBody,
) -> Response {
    put(&desk, who, Subject { policy, part: Part::Tier(tier) }, &body, "quotas").await
}

pub(super) async fn remove_tier(
    State(desk): State<Desked>,
    Extension(who): Extension<Who>,
    InPath((policy, tier)): InPath<(String, String)>,
) -> Response {
    changing::remove(&desk, who, Subject { policy, part: Part::Tier(tier) }).await
}
