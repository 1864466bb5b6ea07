//! Responses to requests that are not allowed.

use std::fmt::Write;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderName, HeaderValue, Response, StatusCode};
use slidegate_core::Decision;

use super::head::RequestHead;
use super::tier::Tier;
use crate::error::StoreError;

const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
const PROBLEM: HeaderValue = HeaderValue::from_static("application/problem+json");
const QUOTA_EXCEEDED: &str = "https://iana.org/assignments/http-problem-types#quota-exceeded";

/// Reason why a request is not allowed.
#[derive(Debug)]
#[non_exhaustive]
pub enum NotAllowed<'a> {
    /// The decision denied it.
    Denied {
        /// Policy that applied.
        tier: &'a Tier,
        /// Decision with its numbers.
        decision: &'a Decision,
    },
    /// The request has no key.
    NoKey,
    /// The store failed, and there is no fallback.
    Undecided(&'a StoreError),
}

/// Error of the store, in the extensions of the response, for logging. Not sent to the client.
#[derive(Clone, Debug)]
pub struct Undecided(pub StoreError);

impl NotAllowed<'_> {
    /// Returns the HTTP status: 429, 400 or 503.
    pub fn status(&self) -> StatusCode {
        match self {
            Self::Denied { .. } => StatusCode::TOO_MANY_REQUESTS,
            Self::NoKey => StatusCode::BAD_REQUEST,
            Self::Undecided(_) => StatusCode::SERVICE_UNAVAILABLE,
        }
    }

    /// Returns the gRPC status: `RESOURCE_EXHAUSTED`, `INVALID_ARGUMENT` or `UNAVAILABLE`.
    fn grpc_status(&self) -> u32 {
        match self {
            Self::Denied { .. } => 8,
            Self::NoKey => 3,
            Self::Undecided(_) => 14,
        }
    }

    /// Returns a description for people.
    pub fn detail(&self) -> String {
        match self {
            Self::Denied { decision, .. } => match decision.retry_after_ms() {
                Some(ms) => format!("too many requests, try again in {ms} ms"),
                None => "this request can never be allowed".to_owned(),
            },
            Self::NoKey => "the request has no rate limit key".to_owned(),
            // Clients must not get details of the failure.
            Self::Undecided(_) => "the request cannot be checked at present".to_owned(),
        }
    }

    /// Builds the response in the client's protocol: a problem document, or a gRPC status.
    pub(super) fn response(&self, request: &RequestHead<'_>) -> Response<Bytes> {
        let grpc =
            request.headers.get(CONTENT_TYPE).filter(|kind| kind.as_bytes().starts_with(b"application/grpc"));
        let mut response = match grpc {
            Some(kind) => self.grpc(kind.clone()),
            None => self.problem(),
        };
        if let Self::Undecided(error) = self
            && error.is_transient()
        {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
        }
        response
    }

    /// Repeats the request's content type, because a gRPC-Web client accepts no other variant.
    fn grpc(&self, kind: HeaderValue) -> Response<Bytes> {
        let mut response = Response::new(Bytes::new());
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, kind);
        headers.insert(GRPC_STATUS, self.grpc_status().into());
        if let Ok(message) = HeaderValue::try_from(self.detail()) {
            headers.insert(GRPC_MESSAGE, message);
        }
        response
    }

    fn problem(&self) -> Response<Bytes> {
        let status = self.status();
        let mut json = String::from("{");
        if let Self::Denied { tier, decision } = self {
            let _ =
                write!(json, r#""type":"{QUOTA_EXCEEDED}","title":"quota exceeded","violated-policies":["#);
            for (place, index) in decision.violated().enumerate() {
                let comma = if place == 0 { "" } else { "," };
                let _ = write!(json, "{comma}{}", json_string(tier.policy().quota_name(index)));
            }
            json.push_str("],");
        } else {
            let title = status.canonical_reason().unwrap_or_default().to_lowercase();
            let _ = write!(json, r#""type":"about:blank","title":"{title}","#);
        }
        let _ = write!(json, r#""status":{},"detail":{}}}"#, status.as_u16(), json_string(&self.detail()));
        let mut response = Response::new(Bytes::from(json));
        *response.status_mut() = status;
        response.headers_mut().insert(CONTENT_TYPE, PROBLEM);
        response
    }
}

fn json_string(text: &str) -> String {
    let mut json = String::with_capacity(text.len() + 2);
    json.push('"');
    for character in text.chars() {
        match character {
            '"' | '\\' => json.extend(['\\', character]),
            character if character.is_control() => {
                let _ = write!(json, "\\u{:04x}", u32::from(character));
            }
            character => json.push(character),
        }
    }
    json.push('"');
    json
}
