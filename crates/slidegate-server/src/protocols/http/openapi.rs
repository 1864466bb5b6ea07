//! The description of all this for programs, made of the same types that decode and encode.

use std::sync::LazyLock;

use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use utoipa::openapi::OpenApi as Described;
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityScheme};
use utoipa::{Modify, OpenApi, ToSchema};

use super::forget::{ForgetRequest, ForgetResponse};
use super::probes::Readiness;
use super::problem::Problem;
use super::reply::BatchItemJson;
use super::throttle::{ThrottleError, ThrottleRequest};
use crate::decision_json::DecisionJson;
use crate::protocols::rls::{JsonRequest, JsonResponse};
use crate::request::RequestFields;
use crate::throttle::ThrottleReply;

/// One request, or several that each stand for themselves.
#[derive(ToSchema)]
#[serde(untagged)]
#[expect(dead_code, reason = "it is only described")]
enum Asked {
    Single(RequestFields<'static>),
    Batch(Vec<RequestFields<'static>>),
}

/// A decision, or as many as were asked for, in the same order.
#[derive(ToSchema)]
#[serde(untagged)]
#[expect(dead_code, reason = "it is only described")]
enum Answered {
    Single(Box<DecisionJson<'static>>),
    Batch(Vec<BatchItemJson<'static>>),
}

macro_rules! verb {
    ($name:ident, $path:literal, $summary:literal) => {
        #[utoipa::path(
            post, path = $path, operation_id = stringify!($name), summary = $summary, request_body = Asked,
            security((), ("token" = [])),
            responses(
                (status = 200, description = "A decision was made; a denial is one, too", body = Answered),
                (status = 400, description = "It cannot be read", body = Problem, content_type = "application/problem+json"),
                (status = 401, description = "The service has tokens, and none was shown", body = Problem, content_type = "application/problem+json"),
                (status = 403, description = "The token is not for this verb", body = Problem, content_type = "application/problem+json"),
                (status = 404, description = "There is no such policy", body = Problem, content_type = "application/problem+json"),
                (status = 408, description = "The body took too long", body = Problem, content_type = "application/problem+json"),
                (status = 413, description = "The body is too large", body = Problem, content_type = "application/problem+json"),
                (status = 422, description = "A value is missing or out of range", body = Problem, content_type = "application/problem+json"),
                (status = 503, description = "The store could not decide, and the policy fails closed", body = Problem, content_type = "application/problem+json"),
            )
        )]
        #[expect(dead_code, reason = "it is only described")]
        fn $name() {}
    };
}

verb!(check, "/v1/check", "Spend, if every quota allows it");
verb!(peek, "/v1/peek", "Say what a check would say, and spend nothing");
verb!(charge, "/v1/charge", "Count what has happened, beyond the limit too");
verb!(refund, "/v1/refund", "Give back, and never more than is counted");
verb!(reset, "/v1/reset", "Forget what a key has spent, and whether it is blocked");
verb!(block, "/v1/block", "Deny a key for a time, in place of an earlier block");

#[utoipa::path(
    post, path = "/v1/forget", operation_id = "forget",
    summary = "Forget what all keys of a policy have spent, and which of them are blocked",
    request_body(content = ForgetRequest, example = json!({"policy": "api"})),
    security((), ("token" = [])),
    responses(
        (status = 200, description = "All keys are forgotten", body = ForgetResponse),
        (status = 202, description = "The service goes on forgetting", body = ForgetResponse),
        (status = 400, description = "It cannot be read", body = Problem, content_type = "application/problem+json"),
        (status = 401, description = "The service has tokens, and none was shown", body = Problem, content_type = "application/problem+json"),
        (status = 403, description = "The token is not for resets", body = Problem, content_type = "application/problem+json"),
        (status = 404, description = "There is no such policy", body = Problem, content_type = "application/problem+json"),
        (status = 408, description = "The body took too long", body = Problem, content_type = "application/problem+json"),
        (status = 413, description = "The body is too large", body = Problem, content_type = "application/problem+json"),
        (status = 422, description = "A field is missing or of another type", body = Problem, content_type = "application/problem+json"),
        (status = 503, description = "The store failed, or another policy is being forgotten", body = Problem, content_type = "application/problem+json"),
    )
)]
#[expect(dead_code, reason = "it is only described")]
fn forget() {}

/// A problem, with the quotas that were exceeded if that is the reason.
#[derive(ToSchema)]
#[serde(rename_all = "kebab-case")]
#[expect(dead_code, reason = "it is only described")]
struct TurnedAway {
    #[serde(flatten)]
    problem: Problem,
    violated_policies: Option<Vec<String>>,
}

#[derive(ToSchema)]
#[expect(dead_code, reason = "it is only described")]
enum DenyStatus {
    #[serde(rename = "401")]
    Unauthorized,
    #[serde(rename = "403")]
    Forbidden,
    #[serde(rename = "429")]
    TooManyRequests,
}

#[derive(ToSchema)]
#[expect(dead_code, reason = "it is only described")]
enum AllowStatus {
    #[serde(rename = "200")]
    Ok,
    #[serde(rename = "204")]
    NoContent,
}

macro_rules! forward_auth {
    ($($name:ident $method:ident),+) => { $(
        #[utoipa::path(
            $method, path = "/forward-auth/{policy}", operation_id = stringify!($name),
            summary = "Decide for a proxy, which asks with the method of its client or with any other",
            params(
                ("policy" = String, Path, example = "api", description = "It says whom the request counts for"),
                ("deny_status" = Option<DenyStatus>, Query, description = "Instead of 429"),
                ("allow_status" = Option<AllowStatus>, Query, description = "Instead of 204"),
            ),
            security((), ("token" = [])),
            responses(
                (status = 200, description = "Allowed, in the words of `allow_status`"),
                (status = 204, description = "Allowed"),
                (status = 400, description = "It cannot be read, or does not say whom it counts for", body = Problem, content_type = "application/problem+json"),
                (status = 401, description = "The service has tokens, and none was shown; or as 429", body = TurnedAway, content_type = "application/problem+json"),
                (status = 403, description = "As 429, in the words of `deny_status`", body = TurnedAway, content_type = "application/problem+json"),
                (status = 404, description = "There is no such policy", body = Problem, content_type = "application/problem+json"),
                (status = 422, description = "A value is out of range", body = Problem, content_type = "application/problem+json"),
                (status = 429, description = "Denied", body = TurnedAway, content_type = "application/problem+json"),
                (status = 503, description = "The store could not decide, and the policy fails closed", body = Problem, content_type = "application/problem+json"),
            )
        )]
        #[expect(dead_code, reason = "it is only described")]
        fn $name() {}
    )+ };
}

forward_auth!(
    forward_auth_get get, forward_auth_put put, forward_auth_post post, forward_auth_delete delete,
    forward_auth_options options, forward_auth_head head, forward_auth_patch patch, forward_auth_trace trace
);

#[utoipa::path(
    post, path = "/json", operation_id = "should_rate_limit",
    summary = "Decide about descriptors, as envoyproxy/ratelimit does",
    request_body(
        content = JsonRequest,
        example = json!({"domain": "edge", "descriptors": [{"entries": [{"key": "remote_address", "value": "203.0.113.7"}]}]})
    ),
    security((), ("token" = [])),
    responses(
        (status = 200, description = "It may proceed", body = JsonResponse),
        (status = 400, description = "It cannot be read, or is too large", body = Problem, content_type = "application/problem+json"),
        (status = 401, description = "The service has tokens, and none was shown", body = Problem, content_type = "application/problem+json"),
        (status = 403, description = "The token is not for checks", body = Problem, content_type = "application/problem+json"),
        (status = 429, description = "It is over a limit", body = JsonResponse),
        (status = 500, description = "The store could not decide, and the limit fails closed", body = Problem, content_type = "application/problem+json"),
    )
)]
#[expect(dead_code, reason = "it is only described")]
fn json() {}

#[utoipa::path(
    post, path = "/throttle", operation_id = "throttle",
    summary = "Decide by the rate in the request, as throttlecrab's server does",
    request_body(
        content = ThrottleRequest,
        example = json!({"key": "user:1", "max_burst": 10, "count_per_period": 100, "period": 60, "quantity": 1})
    ),
    security((), ("token" = [])),
    responses(
        (status = 200, description = "A decision was made; a denial is one, too", body = ThrottleReply),
        (status = 400, description = "It cannot be read", body = ThrottleError),
        (status = 401, description = "The service has tokens, and none was shown", body = ThrottleError),
        (status = 403, description = "The token is not for checks", body = ThrottleError),
        (status = 408, description = "The body took too long", body = ThrottleError),
        (status = 413, description = "The body is too large", body = ThrottleError),
        (status = 415, description = "It is not said to be JSON", body = ThrottleError),
        (status = 422, description = "A field is missing or of another type, or the key is too long", body = ThrottleError),
        (status = 500, description = "A number is out of range, which throttlecrab calls an internal error", body = ThrottleError),
        (status = 503, description = "The store could not decide, and the policy fails closed", body = ThrottleError),
    )
)]
#[expect(dead_code, reason = "it is only described")]
fn throttle() {}

#[utoipa::path(
    get, path = "/healthcheck",
    responses(
        (status = 200, description = "As envoyproxy/ratelimit says that it runs", body = String, content_type = "text/plain"),
        (status = 500, description = "It stops", body = String, content_type = "text/plain"),
    )
)]
#[expect(dead_code, reason = "it is only described")]
fn healthcheck() {}

#[utoipa::path(get, path = "/healthz", responses((status = 200, description = "It runs", body = String, content_type = "text/plain")))]
#[expect(dead_code, reason = "it is only described")]
fn healthz() {}

#[utoipa::path(
    get, path = "/readyz",
    responses(
        (status = 200, description = "Send requests here", body = Readiness),
        (status = 503, description = "It stops", body = Readiness),
    )
)]
#[expect(dead_code, reason = "it is only described")]
fn readyz() {}

#[utoipa::path(
    get, path = "/metrics",
    responses((status = 200, description = "For Prometheus", body = String, content_type = "text/plain"))
)]
#[expect(dead_code, reason = "it is only described")]
fn metrics() {}

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Slidegate",
        description = "Rate limits for any application.",
        license(name = "MIT OR Apache-2.0", identifier = "MIT OR Apache-2.0")
    ),
    modifiers(&Security),
    components(schemas(DenyStatus, AllowStatus)),
    paths(
        check, peek, charge, refund, reset, block, forget, healthz, readyz, metrics, json, throttle, healthcheck,
        forward_auth_get, forward_auth_put, forward_auth_post, forward_auth_delete,
        forward_auth_options, forward_auth_head, forward_auth_patch, forward_auth_trace
    )
)]
struct Document;

struct Security;

impl Modify for Security {
    fn modify(&self, document: &mut Described) {
        add_token(document, "One of `tokens` in the configuration; nothing if it has none");
    }
}

/// Says which token is to be shown.
pub(crate) fn add_token(document: &mut Described, description: &str) {
    let mut token = Http::new(HttpAuthScheme::Bearer);
    token.description = Some(description.to_owned());
    let components = document.components.get_or_insert_default();
    components.add_security_scheme("token", SecurityScheme::Http(token));
}

pub(super) fn document() -> Response {
    static TEXT: LazyLock<Option<String>> = LazyLock::new(|| Document::openapi().to_json().ok());
    written(TEXT.as_deref())
}

/// A description, if it could be made.
pub(crate) fn written(text: Option<&'static str>) -> Response {
    const JSON: HeaderValue = HeaderValue::from_static("application/json");
    match text {
        Some(text) => ([(CONTENT_TYPE, JSON)], text).into_response(),
        None => Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "it cannot be written").into_response(),
    }
}
