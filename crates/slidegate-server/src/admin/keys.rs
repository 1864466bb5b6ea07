//! One key: what it has spent, and limits of its own.

use std::borrow::Cow;

use axum::Extension;
use axum::body::Bytes;
use axum::extract::State;
use axum::response::{IntoResponse, Json, Response};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use slidegate::Verb;
use utoipa::ToSchema;

use super::auth::Who;
use super::body::{self, BlockFields, ChangeFields, RefundFields, checked_note};
use super::changing::{self, Desked};
use super::parts::{InBody, InPath, InQuery};
use super::policies::only;
use crate::answer::Answer;
use crate::app::{Decided, MAX_KEY_BYTES};
use crate::changes::{Action, AuditEntry, Change, Desk, DeskError, Moment, Part, Stamp, Subject, What};
use crate::http::Problem;
use crate::request::{Refusal, Request};

/// In which tier the key is looked at.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Tiered {
    tier: Option<String>,
}

/// A key.
#[derive(Serialize, ToSchema)]
pub(super) struct KeyAnswer<'a> {
    key: &'a str,
    /// What a check would say.
    state: Answer<'a>,
    /// That of the policy.
    mode: &'static str,
    always_allowed: bool,
    always_denied: bool,
    /// What holds for it alone, if that was changed.
    change: Option<Change>,
}

/// What was given back.
#[derive(Serialize, ToSchema)]
pub(super) struct GivenBack<'a> {
    /// What a check would say now.
    state: Answer<'a>,
    audit: AuditEntry,
    /// Whether that could be written down.
    kept: bool,
}

fn request<'a>(policy: &'a str, key: &'a str, tier: Option<&'a str>) -> Request<'a> {
    let [policy, key] = [policy, key].map(|text| Some(text.into()));
    Request { policy, key, tier: tier.map(Cow::from), ..Request::default() }
}

pub(super) async fn inspect(
    State(desk): State<Desked>,
    InPath((policy, key)): InPath<(String, String)>,
    InQuery(Tiered { tier }): InQuery<Tiered>,
) -> Response {
    let app = desk.app();
    match app.decide(Verb::Peek, &request(&policy, &key, tier.as_deref())).await {
        Ok(decided) => {
            let subject = Subject { policy, part: Part::Key(key) };
            let change = desk.in_force().into_iter().find(|change| change.subject == subject);
            let switch = app.store().of(&subject.policy);
            let Part::Key(key) = &subject.part else { return ().into_response() };
            let is_listed = |keys: &std::collections::HashSet<Vec<u8>>| keys.contains(key.as_bytes());
            Json(KeyAnswer {
                key,
                state: Answer::from(&decided),
                mode: switch.mode.name(),
                always_allowed: is_listed(&switch.allowed_keys),
                always_denied: is_listed(&switch.denied_keys),
                change,
            })
            .into_response()
        }
        Err(refusal) => Problem::from(refusal).into_response(),
    }
}

pub(super) async fn put(
    State(desk): State<Desked>,
    Extension(who): Extension<Who>,
    InPath((policy, key)): InPath<(String, String)>,
    InBody(body): InBody,
) -> Response {
    let read = || -> Result<(ChangeFields, What), Refusal> {
        if key.is_empty() || key.len() > MAX_KEY_BYTES {
            let detail = format!("{} bytes; 1 to {MAX_KEY_BYTES} bytes are allowed", key.len());
            return Err(Refusal::out_of_range("key", detail));
        }
        let fields: ChangeFields = body::read(&body)?;
        let what = if fields.tier.is_some() {
            What::InTier(only(&fields, "tier", |fields| fields.tier.clone())?)
        } else {
            What::Quotas(only(&fields, "quotas", |fields| fields.quotas.clone())?)
        };
        Ok((fields, what))
    };
    match read() {
        Ok((fields, what)) => {
            let subject = Subject { policy, part: Part::Key(key) };
            changing::put(&desk, who, subject, &fields, what).await
        }
        Err(refusal) => Problem::from(refusal).into_response(),
    }
}

pub(super) async fn remove(
    State(desk): State<Desked>,
    Extension(who): Extension<Who>,
    InPath((policy, key)): InPath<(String, String)>,
) -> Response {
    changing::remove(&desk, who, Subject { policy, part: Part::Key(key) }).await
}

pub(super) async fn reset(
    State(desk): State<Desked>,
    Extension(who): Extension<Who>,
    InPath((policy, key)): InPath<(String, String)>,
    InQuery(Tiered { tier }): InQuery<Tiered>,
    InBody(body): InBody,
) -> Response {
    give_back(&desk, who, Action::Reset, [policy, key], tier, &body)
        .await
        .unwrap_or_else(IntoResponse::into_response)
}

pub(super) async fn refund(
    State(desk): State<Desked>,
    Extension(who): Extension<Who>,
    InPath((policy, key)): InPath<(String, String)>,
    InQuery(Tiered { tier }): InQuery<Tiered>,
    InBody(body): InBody,
) -> Response {
    give_back(&desk, who, Action::Refund, [policy, key], tier, &body)
        .await
        .unwrap_or_else(IntoResponse::into_response)
}

pub(super) async fn block(
    State(desk): State<Desked>,
    Extension(who): Extension<Who>,
    InPath((policy, key)): InPath<(String, String)>,
    InQuery(Tiered { tier }): InQuery<Tiered>,
    InBody(body): InBody,
) -> Response {
    give_back(&desk, who, Action::Block, [policy, key], tier, &body)
        .await
        .unwrap_or_else(IntoResponse::into_response)
}

/// Gives back or blocks, and writes it down: what was counted before, and after.
async fn give_back(
    desk: &Desk,
    who: Who,
    action: Action,
    [policy, key]: [String; 2],
    tier: Option<String>,
    body: &Bytes,
) -> Result<Response, DeskError> {
    let mut request = request(&policy, &key, tier.as_deref());
    let note = if action == Action::Block {
        let fields: BlockFields = body::read(body)?;
        request.for_ms = Some(fields.for_ms()?);
        fields.note
    } else {
        let fields: RefundFields = body::read(body)?;
        request.cost = fields.cost;
        fields.note
    };
    let note = checked_note(note)?;
    let verb = match action {
        Action::Refund => Verb::Refund,
        Action::Block => Verb::Block,
        _ if request.cost.is_some() => {
            return Err(
                Refusal::out_of_range("cost", "goes with refund; a reset gives back everything").into()
            );
        }
        _ => Verb::Reset,
    };
    let app = desk.app();
    let peek = Request { cost: None, for_ms: None, ..request.clone() };
    let before = app.decide(Verb::Peek, &peek).await?;
    let done = app.decide(verb, &request).await?;
    let at = Moment(app.clock().now_ms());
    let mut after = used(&done);
    if let Some(for_ms) = request.for_ms {
        after["blocked_until"] = json!(Moment(at.0.saturating_add(for_ms.0)));
    }
    let entry = AuditEntry {
        id: Stamp::default(),
        at,
        by: who.0,
        action,
        subject: Subject { policy, part: Part::Key(key) },
        before: used(&before),
        after,
        note,
    };
    let (entry, kept) = desk.record(entry).await;
    Ok(Json(GivenBack { state: Answer::from(&done), audit: entry, kept }).into_response())
}

/// What is counted, by the quotas' names.
fn used(decided: &Decided) -> Value {
    let quotas = decided.decision.quotas().into_iter().enumerate();
    let used =
        quotas.map(|(place, quota)| (decided.policy().quota_name(place).to_owned(), json!(quota.used)));
    json!({ "used": Value::Object(used.collect()) })
}
