//! Problem documents: errors as `application/problem+json`.

use axum::Json;
use axum::http::header::{CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use slidegate_engine::{Rejection, RejectionKind};
use utoipa::ToSchema;

/// Retry time after a transient failure. No pause between two connection attempts to the store is longer.
const RETRY_AFTER_SECONDS: HeaderValue = HeaderValue::from_static("1");

/// Problem document of RFC 9457.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Problem {
    #[serde(rename = "type")]
    kind: &'static str,
    title: &'static str,
    status: u16,
    pub(crate) detail: String,
    /// The invalid field, as a path in the request: `cost`, `quotas[1].limit`.
    #[serde(skip_serializing_if = "Option::is_none")]
    field: Option<String>,
    /// Whether a retry may succeed. Present if the store failed or the server lacks memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    transient: Option<bool>,
    /// Whether a retry may count twice. Present together with `transient`.
    #[serde(skip_serializing_if = "Option::is_none")]
    may_have_counted: Option<bool>,
}

impl Problem {
    pub(crate) fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        Self {
            // The type of problems that the status describes completely.
            kind: "about:blank",
            title: status.canonical_reason().unwrap_or("Error"),
            status: status.as_u16(),
            detail: detail.into(),
            field: None,
            transient: None,
            may_have_counted: None,
        }
    }

    /// Replaces the status and the title.
    pub(crate) fn set_status(&mut self, status: StatusCode) {
        self.status = status.as_u16();
        self.title = status.canonical_reason().unwrap_or("Error");
    }
}

impl From<Rejection> for Problem {
    fn from(rejection: Rejection) -> Self {
        let status = match rejection.kind {
            RejectionKind::Malformed => StatusCode::BAD_REQUEST,
            RejectionKind::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            RejectionKind::TooSlow => StatusCode::REQUEST_TIMEOUT,
            RejectionKind::Unauthorized => StatusCode::UNAUTHORIZED,
            RejectionKind::Forbidden => StatusCode::FORBIDDEN,
            RejectionKind::UnknownPolicy => StatusCode::NOT_FOUND,
            RejectionKind::OutOfRange => StatusCode::UNPROCESSABLE_ENTITY,
            RejectionKind::Busy | RejectionKind::StoreUnavailable { .. } => StatusCode::SERVICE_UNAVAILABLE,
        };
        let (transient, may_have_counted) = match rejection.kind {
            RejectionKind::StoreUnavailable { is_transient, may_have_counted } => {
                (Some(is_transient), Some(may_have_counted))
            }
            RejectionKind::Busy => (Some(true), Some(false)),
            _ => (None, None),
        };
        Self { field: rejection.field, transient, may_have_counted, ..Self::new(status, rejection.detail) }
    }
}

impl Problem {
    pub(crate) fn status(&self) -> StatusCode {
        StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    }

    /// Returns the headers that belong to the problem.
    pub(super) fn headers(&self) -> impl Iterator<Item = (HeaderName, HeaderValue)> + use<> {
        let retry = (self.transient == Some(true)).then_some((RETRY_AFTER, RETRY_AFTER_SECONDS));
        let is_unauthorized = self.status() == StatusCode::UNAUTHORIZED;
        let challenge = is_unauthorized.then_some((WWW_AUTHENTICATE, HeaderValue::from_static("Bearer")));
        let content_type = (CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        [Some(content_type), retry, challenge].into_iter().flatten()
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let headers: HeaderMap = self.headers().collect();
        (self.status(), headers, Json(self)).into_response()
    }
}
