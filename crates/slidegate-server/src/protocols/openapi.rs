//! OpenAPI description of the HTTP API, generated from the types that decode requests and encode responses.

use std::sync::LazyLock;

use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use utoipa::openapi::OpenApi as OpenApiDocument;
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityScheme};
use utoipa::{Modify, OpenApi, ToSchema};

use super::http::{BatchItemJson, DecisionJson, ForgetRequest, ForgetResponse, Problem, RequestFields};
use super::probes::Readiness;
use super::rls::{JsonRequest, JsonResponse};
use super::throttlecrab::{ThrottleError, ThrottleReply, ThrottleRequest};

/// One request, or a batch of independent requests.
#[derive(ToSchema)]
#[serde(untagged)]
#[expect(dead_code, reason = "only its description is used")]
enum RequestBody {
    Single(RequestFields<'static>),
    Batch(Vec<RequestFields<'static>>),
}

/// A decision, or one decision for each request of a batch, in the same order.
#[derive(ToSchema)]
#[serde(untagged)]
#[expect(dead_code, reason = "only its description is used")]
enum DecisionBody {
    Single(Box<DecisionJson<'static>>),
    Batch(Vec<BatchItemJson<'static>>),
}

macro_rules! verb {
    ($name:ident, $path:literal, $summary:literal) => {
        #[utoipa::path(
            post, path = $path, operation_id = stringify!($name), summary = $summary, request_body = RequestBody,
            security((), ("token" = [])),
            responses(
                (status = 200, description = "The request was decided: allowed or denied", body = DecisionBody),
                (status = 400, description = "Malformed request", body = Problem, content_type = "application/problem+json"),
                (status = 401, description = "Missing or unknown token", body = Problem, content_type = "application/problem+json"),
                (status = 403, description = "The token does not allow this verb", body = Problem, content_type = "application/problem+json"),
                (status = 404, description = "Unknown policy", body = Problem, content_type = "application/problem+json"),
                (status = 408, description = "The body was not complete within the timeout", body = Problem, content_type = "application/problem+json"),
                (status = 413, description = "The body is too large", body = Problem, content_type = "application/problem+json"),
                (status = 422, description = "A value is missing or out of range", body = Problem, content_type = "application/problem+json"),
                (status = 503, description = "The store did not decide, or memory for a large batch is not available", body = Problem, content_type = "application/problem+json"),
            )
        )]
        #[expect(dead_code, reason = "only its description is used")]
        fn $name() {}
    };
}

verb!(check, "/v1/check", "Spend the cost if every quota allows it");
verb!(peek, "/v1/peek", "Return the decision of a check without spending the cost");
verb!(charge, "/v1/charge", "Count a cost that was already incurred, even beyond the limit");
verb!(refund, "/v1/refund", "Refund a cost, at most the counted one");
verb!(reset, "/v1/reset", "Clear the counts and the block of a key");
verb!(block, "/v1/block", "Deny a key for a time; replaces an earlier block");

#[utoipa::path(
    post, path = "/v1/forget", operation_id = "forget",
    summary = "Clear the counts and the blocks of all keys of a policy",
    request_body(content = ForgetRequest, example = json!({"policy": "api"})),
    security((), ("token" = [])),
    responses(
        (status = 200, description = "All keys were cleared", body = ForgetResponse),
        (status = 202, description = "The operation continues in the background", body = ForgetResponse),
        (status = 400, description = "Malformed request", body = Problem, content_type = "application/problem+json"),
        (status = 401, description = "Missing or unknown token", body = Problem, content_type = "application/problem+json"),
        (status = 403, description = "The token does not allow resets", body = Problem, content_type = "application/problem+json"),
        (status = 404, description = "Unknown policy", body = Problem, content_type = "application/problem+json"),
        (status = 408, description = "The body was not complete within the timeout", body = Problem, content_type = "application/problem+json"),
        (status = 413, description = "The body is too large", body = Problem, content_type = "application/problem+json"),
        (status = 422, description = "A field is missing or has the wrong type", body = Problem, content_type = "application/problem+json"),
        (status = 503, description = "The store failed, or the same operation is in progress for another policy", body = Problem, content_type = "application/problem+json"),
    )
)]
#[expect(dead_code, reason = "only its description is used")]
fn forget() {}

/// Problem document of a denial or an error. A denial lists the violated quotas.
#[derive(ToSchema)]
#[serde(rename_all = "kebab-case")]
#[expect(dead_code, reason = "only its description is used")]
struct DenialProblem {
    #[serde(flatten)]
    problem: Problem,
    violated_policies: Option<Vec<String>>,
}

#[derive(ToSchema)]
#[expect(dead_code, reason = "only its description is used")]
enum DenyStatus {
    #[serde(rename = "401")]
    Unauthorized,
    #[serde(rename = "403")]
    Forbidden,
    #[serde(rename = "429")]
    TooManyRequests,
}

#[derive(ToSchema)]
#[expect(dead_code, reason = "only its description is used")]
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
            summary = "Decide an authorization request of a proxy, with any method",
            params(
                ("policy" = String, Path, example = "api", description = "Name of a policy, whose setting `key` defines the key of the request"),
                ("deny_status" = Option<DenyStatus>, Query, description = "Status of a denial, 429 by default"),
                ("allow_status" = Option<AllowStatus>, Query, description = "Status of an approval, 204 by default"),
            ),
            security((), ("token" = [])),
            responses(
                (status = 200, description = "Allowed with `allow_status=200`"),
                (status = 204, description = "Allowed"),
                (status = 400, description = "Malformed request, or a header of the key is missing or repeated", body = Problem, content_type = "application/problem+json"),
                (status = 401, description = "Missing or unknown token; or denied with `deny_status=401`", body = DenialProblem, content_type = "application/problem+json"),
                (status = 403, description = "Denied with `deny_status=403`, or the token does not allow checks", body = DenialProblem, content_type = "application/problem+json"),
                (status = 404, description = "Unknown policy", body = Problem, content_type = "application/problem+json"),
                (status = 422, description = "A value is out of range", body = Problem, content_type = "application/problem+json"),
                (status = 429, description = "Denied", body = DenialProblem, content_type = "application/problem+json"),
                (status = 503, description = "The store did not decide, and the policy fails closed", body = Problem, content_type = "application/problem+json"),
            )
        )]
        #[expect(dead_code, reason = "only its description is used")]
        fn $name() {}
    )+ };
}

forward_auth!(
    forward_auth_get get, forward_auth_put put, forward_auth_post post, forward_auth_delete delete,
    forward_auth_options options, forward_auth_head head, forward_auth_patch patch, forward_auth_trace trace
);

#[utoipa::path(
    post, path = "/json", operation_id = "should_rate_limit",
    summary = "Decide descriptors, compatible with envoyproxy/ratelimit",
    request_body(
        content = JsonRequest,
        example = json!({"domain": "edge", "descriptors": [{"entries": [{"key": "remote_address", "value": "203.0.113.7"}]}]})
    ),
    security((), ("token" = [])),
    responses(
        (status = 200, description = "Allowed", body = JsonResponse),
        (status = 400, description = "Malformed request, or the body is too large", body = Problem, content_type = "application/problem+json"),
        (status = 401, description = "Missing or unknown token", body = Problem, content_type = "application/problem+json"),
        (status = 403, description = "The token does not allow checks", body = Problem, content_type = "application/problem+json"),
        (status = 429, description = "Denied: a descriptor exceeds its limit", body = JsonResponse),
        (status = 500, description = "The store did not decide, and the limit fails closed", body = Problem, content_type = "application/problem+json"),
    )
)]
#[expect(dead_code, reason = "only its description is used")]
fn json() {}

#[utoipa::path(
    post, path = "/throttle", operation_id = "throttle",
    summary = "Decide by the rate in the request, compatible with the server of throttlecrab",
    request_body(
        content = ThrottleRequest,
        example = json!({"key": "user:1", "max_burst": 10, "count_per_period": 100, "period": 60, "quantity": 1})
    ),
    security((), ("token" = [])),
    responses(
        (status = 200, description = "The request was decided: allowed or denied", body = ThrottleReply),
        (status = 400, description = "Malformed request", body = ThrottleError),
        (status = 401, description = "Missing or unknown token", body = ThrottleError),
        (status = 403, description = "The token does not allow checks", body = ThrottleError),
        (status = 408, description = "The body was not complete within the timeout", body = ThrottleError),
        (status = 413, description = "The body is too large", body = ThrottleError),
        (status = 415, description = "The content type is not application/json", body = ThrottleError),
        (status = 422, description = "A field is missing or has the wrong type, or the key is too long", body = ThrottleError),
        (status = 500, description = "A number is out of range; throttlecrab reports an internal error", body = ThrottleError),
        (status = 503, description = "The store did not decide, and the policy fails closed", body = ThrottleError),
    )
)]
#[expect(dead_code, reason = "only its description is used")]
fn throttle() {}

#[utoipa::path(
    get, path = "/healthcheck",
    responses(
        (status = 200, description = "The service runs; compatible with envoyproxy/ratelimit", body = String, content_type = "text/plain"),
        (status = 500, description = "The service is stopping", body = String, content_type = "text/plain"),
    )
)]
#[expect(dead_code, reason = "only its description is used")]
fn healthcheck() {}

#[utoipa::path(get, path = "/healthz", responses((status = 200, description = "The service runs", body = String, content_type = "text/plain")))]
#[expect(dead_code, reason = "only its description is used")]
fn healthz() {}

#[utoipa::path(
    get, path = "/readyz",
    responses(
        (status = 200, description = "Ready for requests", body = Readiness),
        (status = 503, description = "The service is stopping; send requests to another server", body = Readiness),
    )
)]
#[expect(dead_code, reason = "only its description is used")]
fn readyz() {}

#[utoipa::path(
    get, path = "/metrics",
    responses((status = 200, description = "Metrics in the text format of Prometheus", body = String, content_type = "text/plain"))
)]
#[expect(dead_code, reason = "only its description is used")]
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
    fn modify(&self, document: &mut OpenApiDocument) {
        add_token_scheme(
            document,
            "A token of `tokens` in the configuration; not required if none is configured",
        );
    }
}

/// Adds the bearer token to the security schemes of a document.
pub(crate) fn add_token_scheme(document: &mut OpenApiDocument, description: &str) {
    let mut token = Http::new(HttpAuthScheme::Bearer);
    token.description = Some(description.to_owned());
    let components = document.components.get_or_insert_default();
    components.add_security_scheme("token", SecurityScheme::Http(token));
}

pub(super) fn document() -> Response {
    static TEXT: LazyLock<Option<String>> = LazyLock::new(|| Document::openapi().to_json().ok());
    document_response(TEXT.as_deref())
}

/// Returns the response with an OpenAPI document, or a problem if the document could not be generated.
pub(crate) fn document_response(text: Option<&'static str>) -> Response {
    const JSON: HeaderValue = HeaderValue::from_static("application/json");
    match text {
        Some(text) => ([(CONTENT_TYPE, JSON)], text).into_response(),
        None => {
            Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "the OpenAPI document could not be generated")
                .into_response()
        }
    }
}
