//! The description of all this for programs, made of the same types that decode and encode.

use std::sync::LazyLock;

use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use utoipa::openapi::OpenApi as Described;
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityScheme};
use utoipa::{Modify, OpenApi, ToSchema};

use super::probes::Readiness;
use super::problem::Problem;
use super::reply::BatchAnswer;
use crate::answer::Answer;
use crate::request::RequestFields;

/// One request, or several that each stand for themselves.
#[derive(ToSchema)]
#[serde(untagged)]
#[expect(dead_code, reason = "it is only described")]
enum Asked {
    Single(RequestFields),
    Batch(Vec<RequestFields>),
}

/// A decision, or as many as were asked for, in the same order.
#[derive(ToSchema)]
#[serde(untagged)]
#[expect(dead_code, reason = "it is only described")]
enum Answered {
    Single(Box<Answer<'static>>),
    Batch(Vec<BatchAnswer<'static>>),
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
verb!(refund, "/v1/refund", "Give back, and never more than is counted");
verb!(reset, "/v1/reset", "Forget what a key has spent");

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
    paths(check, peek, refund, reset, healthz, readyz, metrics)
)]
struct Document;

struct Security;

impl Modify for Security {
    fn modify(&self, document: &mut Described) {
        let mut token = Http::new(HttpAuthScheme::Bearer);
        token.description = Some("One of `tokens` in the configuration; nothing if it has none".to_owned());
        let components = document.components.get_or_insert_default();
        components.add_security_scheme("token", SecurityScheme::Http(token));
    }
}

pub(super) fn document() -> Response {
    static TEXT: LazyLock<Option<String>> = LazyLock::new(|| Document::openapi().to_json().ok());
    const JSON: HeaderValue = HeaderValue::from_static("application/json");
    match &*TEXT {
        Some(text) => ([(CONTENT_TYPE, JSON)], text.as_str()).into_response(),
        None => Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "it cannot be written").into_response(),
    }
}
