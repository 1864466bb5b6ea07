//! Responses with decisions, for hyper or for the fast path of HTTP/1.1.

use axum::http::{HeaderMap, Response, StatusCode};
use http_body_util::{Either, Full};
use serde::Serialize;
use slidegate::Clock;
use slidegate_engine::{Decided, Rejection, Selection};
use utoipa::ToSchema;

use super::body_budget::{self, BudgetPermit};
use super::decision_json::DecisionJson;
use super::encoded_policy::Encoded;
use super::header_sink::HeaderSink;
use super::problem::Problem;
use super::{ResponseBody, encode};
use crate::request_metrics::record_rejection;

/// Capacity for the headers of a response, including the date and the length.
const HEADER_CAPACITY: usize = 6;

/// A response with a decision, a batch of decisions or a problem. Its buffers are reused for the next response.
#[derive(Debug)]
pub(crate) struct Reply<H> {
    pub(super) status: StatusCode,
    pub(super) headers: H,
    pub(super) json: Vec<u8>,
    /// Permit of a batch.
    pub(super) permit: Option<BudgetPermit>,
}

impl Reply<HeaderMap> {
    /// Returns an empty response for hyper.
    pub(super) fn for_hyper() -> Self {
        Self::with_headers(HeaderMap::with_capacity(HEADER_CAPACITY))
    }
}

impl<H: HeaderSink> Reply<H> {
    pub(super) fn with_headers(headers: H) -> Self {
        Self {
            status: StatusCode::OK,
            headers,
            json: Vec::with_capacity(encode::TYPICAL_RESPONSE_BYTES),
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
        problem.write_headers(&mut self.headers);
        // Cannot fail: a problem has only strings, numbers and booleans.
        let _ = serde_json::to_writer(&mut self.json, problem);
    }
}

/// Counts and logs a rejection, and returns its problem.
fn problem_of(rejection: Rejection) -> Problem {
    record_rejection(&rejection);
    Problem::from(rejection)
}

impl Reply<HeaderMap> {
    pub(super) fn into_response(self) -> Response<ResponseBody> {
        let mut response =
            Response::new(Either::Left(Full::new(body_budget::with_permit(self.json, self.permit))));
        *response.status_mut() = self.status;
        *response.headers_mut() = self.headers;
        response
    }
}

/// Element of a response to a batch: a decision, or a problem if the request is invalid or the store failed. An element
/// does not depend on the others.
#[derive(Serialize, ToSchema)]
#[expect(dead_code, reason = "only its schema is used")]
#[serde(untagged)]
pub(super) enum BatchItemJson<'a> {
    Decided(DecisionJson<'a>),
    Undecided(Problem),
}
