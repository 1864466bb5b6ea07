//! Errors as `application/problem+json`.

use axum::Json;
use axum::http::header::{CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;

use super::head::Head;
use crate::request::{Refusal, RefusalKind};

/// When to come back to a store that is away: no pause between two attempts to connect to it is longer.
const RETRY_AFTER_SECONDS: HeaderValue = HeaderValue::from_static("1");

/// A problem as RFC 9457 has it, with the field to blame.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Problem {
    #[serde(rename = "type")]
    kind: &'static str,
    title: &'static str,
    status: u16,
    pub(crate) detail: String,
    /// The field to blame, as a path from the request: `cost`, `quotas[1].limit`.
    #[serde(skip_serializing_if = "Option::is_none")]
    field: Option<String>,
    /// Of a store that failed, or of a server without room: whether it is worth while to ask again.
    #[serde(skip_serializing_if = "Option::is_none")]
    transient: Option<bool>,
    /// Of the same: whether to ask again may count twice.
    #[serde(skip_serializing_if = "Option::is_none")]
    may_have_counted: Option<bool>,
}

impl Problem {
    pub(crate) fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        Self {
            // The status says it all, which is what this type stands for.
            kind: "about:blank",
            title: status.canonical_reason().unwrap_or("Error"),
            status: status.as_u16(),
            detail: detail.into(),
            field: None,
            transient: None,
            may_have_counted: None,
        }
    }

    /// Said with another status.
    pub(super) fn set_status(&mut self, status: StatusCode) {
        self.status = status.as_u16();
        self.title = status.canonical_reason().unwrap_or("Error");
    }
}

impl From<Refusal> for Problem {
    fn from(refusal: Refusal) -> Self {
        let status = match refusal.kind {
            RefusalKind::Malformed => StatusCode::BAD_REQUEST,
            RefusalKind::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            RefusalKind::TooSlow => StatusCode::REQUEST_TIMEOUT,
            RefusalKind::Unauthorized => StatusCode::UNAUTHORIZED,
            RefusalKind::Forbidden => StatusCode::FORBIDDEN,
            RefusalKind::UnknownPolicy => StatusCode::NOT_FOUND,
            RefusalKind::OutOfRange => StatusCode::UNPROCESSABLE_ENTITY,
            RefusalKind::Busy | RefusalKind::StoreUnavailable { .. } => StatusCode::SERVICE_UNAVAILABLE,
        };
        let (transient, may_have_counted) = match refusal.kind {
            RefusalKind::StoreUnavailable { is_transient, may_have_counted } => {
                (Some(is_transient), Some(may_have_counted))
            }
            RefusalKind::Busy => (Some(true), Some(false)),
            _ => (None, None),
        };
        Self { field: refusal.field, transient, may_have_counted, ..Self::new(status, refusal.detail) }
    }
}

impl Problem {
    pub(super) fn status(&self) -> StatusCode {
        StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    }

    /// What goes with it.
    pub(super) fn write_headers(&self, head: &mut impl Head) {
        head.add(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if self.transient == Some(true) {
            head.add(RETRY_AFTER, RETRY_AFTER_SECONDS);
        }
        if self.status() == StatusCode::UNAUTHORIZED {
            head.add(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let (status, mut headers) = (self.status(), HeaderMap::new());
        self.write_headers(&mut headers);
        (status, headers, Json(self)).into_response()
    }
}
