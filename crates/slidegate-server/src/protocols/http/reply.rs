//! Responses with decisions: the status, the headers and the JSON, for hyper or as the bytes of HTTP/1.1.

use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};
use http_body_util::{Either, Full};
use serde::Serialize;
use slidegate::Clock;
use slidegate::headers::HeaderStyle;
use slidegate_engine::{Decided, Rejection, Selection};
use utoipa::ToSchema;

use super::ResponseBody;
use super::body_budget::{self, BudgetPermit};
use super::decision_json::DecisionJson;
use super::encode::{self, Encoded, EncodedPolicy, TYPICAL_RESPONSE_BYTES};
use super::problem::Problem;
use crate::request_metrics::record_rejection;

/// Capacity for the headers of a response, including the date and the length.
const HEADER_CAPACITY: usize = 6;

/// Maximum capacity of a buffer that is reused for the next response.
const MAX_REUSED_BYTES: usize = 8 * TYPICAL_RESPONSE_BYTES;

/// A response with a decision, a batch of decisions or a problem. Its buffers are reused for the next response.
#[derive(Debug)]
pub(crate) struct Reply<H> {
    status: StatusCode,
    headers: H,
    json: Vec<u8>,
    /// Permit of a batch.
    permit: Option<BudgetPermit>,
}

impl Reply<HeaderMap> {
    /// Returns an empty response for hyper.
    pub(super) fn for_hyper() -> Self {
        Self::with_headers(HeaderMap::with_capacity(HEADER_CAPACITY))
    }

    pub(super) fn into_response(self) -> Response<ResponseBody> {
        let mut response =
            Response::new(Either::Left(Full::new(body_budget::with_permit(self.json, self.permit))));
        *response.status_mut() = self.status;
        *response.headers_mut() = self.headers;
        response
    }
}

/// A response of the fast path.
pub(super) type PlainReply = Reply<HeaderLines>;

impl PlainReply {
    /// Returns an empty response.
    pub(super) fn new() -> Self {
        Self::with_headers(HeaderLines::default())
    }

    /// Appends the HTTP/1.1 response, in the same format as hyper.
    ///
    /// `date` is the complete `date` line. `is_last` announces the end of the connection.
    pub(super) fn write(&self, out: &mut Vec<u8>, date: &str, is_last: bool) {
        if self.status == StatusCode::OK {
            out.extend_from_slice(b"HTTP/1.1 200 OK\r\n");
        } else {
            out.extend_from_slice(b"HTTP/1.1 ");
            out.extend_from_slice(self.status.as_str().as_bytes());
            out.push(b' ');
            out.extend_from_slice(self.status.canonical_reason().unwrap_or_default().as_bytes());
            out.extend_from_slice(b"\r\n");
        }
        out.extend_from_slice(&self.headers.0);
        out.extend_from_slice(b"content-length: ");
        out.extend_from_slice(itoa::Buffer::new().format(self.json.len()).as_bytes());
        out.extend_from_slice(if is_last { b"\r\nconnection: close\r\n" } else { b"\r\n" });
        out.extend_from_slice(date.as_bytes());
        out.extend_from_slice(b"\r\n");
        out.extend_from_slice(&self.json);
    }

    /// Takes the permit, which the caller holds until the written response is sent.
    pub(super) fn take_permit(&mut self) -> Option<BudgetPermit> {
        self.permit.take()
    }

    /// Frees the buffer of a large response.
    pub(super) fn shrink(&mut self) {
        if self.json.capacity() > MAX_REUSED_BYTES {
            self.json = Vec::with_capacity(TYPICAL_RESPONSE_BYTES);
        }
        self.headers.0.shrink_to(MAX_REUSED_BYTES);
    }
}

impl<H: HeaderSink> Reply<H> {
    fn with_headers(headers: H) -> Self {
        Self {
            status: StatusCode::OK,
            headers,
            json: Vec::with_capacity(TYPICAL_RESPONSE_BYTES),
            permit: None,
        }
    }

    /// Empties the response for reuse.
    pub(super) fn clear(&mut self) {
        self.status = StatusCode::OK;
        self.headers.clear();
        self.json.clear();
        self.permit = None;
    }

    /// Reserves memory for the response to a batch. Called before the first decision.
    pub(super) fn reserve(
        &mut self,
        selections: &[Result<Selection<'_>, Rejection>],
    ) -> Result<(), Rejection> {
        let max_bytes = 2 + selections.iter().map(encode::max_bytes).sum::<usize>();
        self.permit = body_budget::for_response(max_bytes, selections)?;
        self.json.reserve_exact(max_bytes);
        Ok(())
    }

    /// Writes a decision with its headers.
    pub(super) fn write_decision(&mut self, decided: &Decided<'_>, clock: &dyn Clock) {
        self.headers.add_json_content_type();
        let encoded = Encoded::of(&decided.selection.policy);
        match encode::write(&mut self.json, &encoded, decided) {
            Ok(()) => self.headers.add_rate_limit(&encoded, decided, clock),
            Err(error) => self.write_internal_error(&error),
        }
    }

    /// Appends decisions of a batch. Returns false if the encoding failed and the response is a problem instead.
    pub(super) fn append_decisions(&mut self, decided: Vec<Result<Decided<'_>, Rejection>>) -> bool {
        for decided in decided {
            self.json.push(if self.json.is_empty() { b'[' } else { b',' });
            let written = match decided {
                Ok(decided) => {
                    encode::write(&mut self.json, &Encoded::of(&decided.selection.policy), &decided)
                }
                Err(rejection) => serde_json::to_writer(&mut self.json, &problem_of(rejection)),
            };
            if let Err(error) = written {
                self.write_internal_error(&error);
                return false;
            }
        }
        true
    }

    /// Completes the response to a batch.
    pub(super) fn end_batch(&mut self) {
        self.headers.add_json_content_type();
        if self.json.is_empty() {
            self.json.push(b'[');
        }
        self.json.push(b']');
    }

    /// Replaces the response with the problem of a rejection.
    pub(super) fn write_rejection(&mut self, rejection: Rejection) {
        self.write_problem(&problem_of(rejection));
    }

    fn write_internal_error(&mut self, error: &serde_json::Error) {
        self.write_problem(&Problem::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()));
    }

    fn write_problem(&mut self, problem: &Problem) {
        self.clear();
        self.status = problem.status();
        problem.headers().for_each(|(name, value)| self.headers.add(&name, value.as_bytes()));
        // Cannot fail: a problem has only strings, numbers and booleans.
        let _ = serde_json::to_writer(&mut self.json, problem);
    }
}

/// Counts and logs a rejection, and returns its problem.
fn problem_of(rejection: Rejection) -> Problem {
    record_rejection(&rejection);
    Problem::from(rejection)
}

/// Destination for the headers of a response. Callers add each header once.
pub(crate) trait HeaderSink {
    /// Adds a header.
    fn add(&mut self, name: &HeaderName, value: &[u8]);

    /// Adds `content-type: application/json`.
    fn add_json_content_type(&mut self);

    /// Removes all headers.
    fn clear(&mut self);

    /// Adds the rate-limit headers of a decision.
    fn add_rate_limit(&mut self, encoded: &EncodedPolicy, decided: &Decided<'_>, clock: &dyn Clock) {
        let policy = &decided.selection.policy;
        let (style, headers) = (policy.headers(), encoded.headers(policy.policy()));
        // Only this style reports absolute times.
        let now_ms = if style == HeaderStyle::LegacyEpoch { clock.now_ms() } else { 0 };
        style.visit(headers, &decided.decision, now_ms, |name, value| self.add(name, value));
    }
}

impl HeaderSink for HeaderMap {
    fn add(&mut self, name: &HeaderName, value: &[u8]) {
        // All values are ASCII without control characters.
        if let Ok(value) = HeaderValue::from_bytes(value) {
            self.insert(name, value);
        }
    }

    fn add_json_content_type(&mut self) {
        self.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    }

    fn clear(&mut self) {
        self.clear();
    }
}

/// Header lines of HTTP/1.1.
#[derive(Debug, Default)]
pub(crate) struct HeaderLines(Vec<u8>);

impl HeaderSink for HeaderLines {
    fn add(&mut self, name: &HeaderName, value: &[u8]) {
        self.0.extend_from_slice(name.as_str().as_bytes());
        self.0.extend_from_slice(b": ");
        self.0.extend_from_slice(value);
        self.0.extend_from_slice(b"\r\n");
    }

    fn add_json_content_type(&mut self) {
        self.0.extend_from_slice(b"content-type: application/json\r\n");
    }

    fn clear(&mut self) {
        self.0.clear();
    }
}

/// Adds the rate-limit headers of a decision to a response of another form.
pub(crate) fn add_rate_limit_headers(headers: &mut HeaderMap, decided: &Decided<'_>, clock: &dyn Clock) {
    headers.add_rate_limit(&Encoded::of(&decided.selection.policy), decided, clock);
}

/// Element of a response to a batch: a decision, or a problem if the request is invalid or the store failed. An element
/// does not depend on the others.
#[derive(Serialize, ToSchema)]
#[expect(dead_code, reason = "only its schema is used")]
#[serde(untagged)]
pub(crate) enum BatchItemJson<'a> {
    Decided(DecisionJson<'a>),
    Undecided(Problem),
}
