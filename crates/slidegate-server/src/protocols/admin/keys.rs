//! Endpoints of one key: its counts, its override, and reset, refund and block.

use std::borrow::Cow;

use axum::Extension;
use axum::body::Bytes;
use axum::extract::State;
use axum::response::{IntoResponse, Json, Response};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use slidegate::Verb;
use slidegate_config::MAX_KEY_BYTES;
use slidegate_engine::Decided;
use slidegate_engine::changes::{
    AuditAction, AuditEntry, Change, ChangeController, ChangeError, OperationId, Part, Setting, Subject,
    Timestamp,
};
use slidegate_engine::{Rejection, UncheckedRequest};
use utoipa::ToSchema;

use super::auth::Caller;
use super::body::{self, BlockFields, ChangeFields, RefundFields, checked_note};
use super::edit::{self, SharedController};
use super::extract::{PathParams, QueryParams, RawBody};
use super::policies::sole_setting;
use crate::protocols::http::DecisionJson;
use crate::protocols::http::Problem;

/// Query parameter that selects the tier.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TierParam {
    tier: Option<String>,
}

/// State of a key.
#[derive(Serialize, ToSchema)]
pub(super) struct KeyResponse<'a> {
    key: &'a str,
    /// Result of a peek.
    state: DecisionJson<'a>,
    /// Mode of the policy.
    mode: &'static str,
    always_allowed: bool,
    always_denied: bool,
    /// Change of this key, if one is in force.
    change: Option<Change>,
}

/// Response to a reset, a refund or a block.
#[derive(Serialize, ToSchema)]
pub(super) struct KeyOperationResponse<'a> {
    /// State of the key after the operation.
    state: DecisionJson<'a>,
    audit: AuditEntry,
    /// Whether the audit entry is stored.
    kept: bool,
}

fn request<'a>(policy: &'a str, key: &'a str, tier: Option<&'a str>) -> UncheckedRequest<'a> {
    let [policy, key] = [policy, key].map(|text| Some(text.into()));
    UncheckedRequest { policy, key, tier: tier.map(Cow::from), ..UncheckedRequest::default() }
}

pub(super) async fn inspect(
    State(controller): State<SharedController>,
    PathParams((policy, key)): PathParams<(String, String)>,
    QueryParams(TierParam { tier }): QueryParams<TierParam>,
) -> Response {
    let engine = controller.engine();
    match engine.decide_request(Verb::Peek, &request(&policy, &key, tier.as_deref())).await {
        Ok(decided) => {
            let subject = Subject { policy: policy.clone(), part: Part::Key(key.clone()) };
            let change = controller.in_force().into_iter().find(|change| change.subject == subject);
            let switch = engine.store().switch_of(&subject.policy);
            let Part::Key(key) = &subject.part else { return ().into_response() };
            let contains_key = |keys: &std::collections::HashSet<Vec<u8>>| keys.contains(key.as_bytes());
            Json(KeyResponse {
                key,
                state: DecisionJson::from(&decided),
                mode: switch.mode.name(),
                always_allowed: contains_key(&switch.allowed_keys),
                always_denied: contains_key(&switch.denied_keys),
                change,
            })
            .into_response()
        }
        Err(rejection) => Problem::from(rejection).into_response(),
    }
}

pub(super) async fn put(
    State(controller): State<SharedController>,
    Extension(caller): Extension<Caller>,
    PathParams((policy, key)): PathParams<(String, String)>,
    RawBody(body): RawBody,
) -> Response {
    let decode = || -> Result<(ChangeFields, Setting), Rejection> {
        if key.is_empty() || key.len() > MAX_KEY_BYTES {
            let detail = format!("{} bytes; 1 to {MAX_KEY_BYTES} bytes are allowed", key.len());
            return Err(Rejection::out_of_range("key", detail));
        }
        let fields: ChangeFields = body::read(&body)?;
        let setting = if fields.tier.is_some() {
            Setting::Tier(sole_setting(&fields, "tier", |fields| fields.tier.clone())?)
        } else {
            Setting::Quotas(sole_setting(&fields, "quotas", |fields| fields.quotas.clone())?)
        };
        Ok((fields, setting))
    };
    match decode() {
        Ok((fields, setting)) => {
            let subject = Subject { policy: policy.clone(), part: Part::Key(key.clone()) };
            edit::put(&controller, caller, subject, &fields, setting).await
        }
        Err(rejection) => Problem::from(rejection).into_response(),
    }
}

pub(super) async fn remove(
    State(controller): State<SharedController>,
    Extension(caller): Extension<Caller>,
    PathParams((policy, key)): PathParams<(String, String)>,
) -> Response {
    edit::remove(&controller, caller, Subject { policy, part: Part::Key(key) }).await
}

pub(super) async fn reset(
    State(controller): State<SharedController>,
    Extension(caller): Extension<Caller>,
    PathParams((policy, key)): PathParams<(String, String)>,
    QueryParams(TierParam { tier }): QueryParams<TierParam>,
    RawBody(body): RawBody,
) -> Response {
    operate(&controller, caller, AuditAction::Reset, [policy, key], tier, &body)
        .await
        .unwrap_or_else(|error| Problem::from(error).into_response())
}

pub(super) async fn refund(
    State(controller): State<SharedController>,
    Extension(caller): Extension<Caller>,
    PathParams((policy, key)): PathParams<(String, String)>,
    QueryParams(TierParam { tier }): QueryParams<TierParam>,
    RawBody(body): RawBody,
) -> Response {
    operate(&controller, caller, AuditAction::Refund, [policy, key], tier, &body)
        .await
        .unwrap_or_else(|error| Problem::from(error).into_response())
}

pub(super) async fn block(
    State(controller): State<SharedController>,
    Extension(caller): Extension<Caller>,
    PathParams((policy, key)): PathParams<(String, String)>,
    QueryParams(TierParam { tier }): QueryParams<TierParam>,
    RawBody(body): RawBody,
) -> Response {
    operate(&controller, caller, AuditAction::Block, [policy, key], tier, &body)
        .await
        .unwrap_or_else(|error| Problem::from(error).into_response())
}

/// Executes a reset, a refund or a block, and records the counts before and after it.
async fn operate(
    controller: &ChangeController,
    caller: Caller,
    action: AuditAction,
    [policy, key]: [String; 2],
    tier: Option<String>,
    body: &Bytes,
) -> Result<Response, ChangeError> {
    let mut request = request(&policy, &key, tier.as_deref());
    let note = if action == AuditAction::Block {
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
        AuditAction::Refund => Verb::Refund,
        AuditAction::Block => Verb::Block,
        _ if request.cost.is_some() => {
            return Err(Rejection::out_of_range("cost", "is for a refund; a reset clears all counts").into());
        }
        _ => Verb::Reset,
    };
    let engine = controller.engine();
    let peek = UncheckedRequest { cost: None, for_ms: None, ..request.clone() };
    let before = engine.decide_request(Verb::Peek, &peek).await?;
    let decided = engine.decide_request(verb, &request).await?;
    let at = Timestamp(engine.clock().now_ms());
    let mut after = used_by_quota(&decided);
    if let Some(for_ms) = request.for_ms {
        after["blocked_until"] = json!(Timestamp(at.0.saturating_add(for_ms.0)));
    }
    let entry = AuditEntry {
        id: OperationId::default(),
        at,
        by: caller.0,
        action,
        subject: Subject { policy: policy.clone(), part: Part::Key(key.clone()) },
        before: used_by_quota(&before),
        after,
        note,
    };
    let (entry, kept) = controller.record(entry).await;
    Ok(Json(KeyOperationResponse { state: DecisionJson::from(&decided), audit: entry, kept }).into_response())
}

/// Returns the counts by quota name.
fn used_by_quota(decided: &Decided) -> Value {
    let quotas = decided.decision.quotas().into_iter().enumerate();
    let counts =
        quotas.map(|(index, quota)| (decided.policy().quota_name(index).to_owned(), json!(quota.used)));
    json!({ "used": Value::Object(counts.collect()) })
}
