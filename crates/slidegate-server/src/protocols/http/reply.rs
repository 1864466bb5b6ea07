//! What is answered to whoever asks for decisions, whichever way it came.

use axum::http::{HeaderMap, Response, StatusCode};
use http_body_util::{Either, Full};
use metrics::counter;
use serde::Serialize;
use slidegate::{Clock, Verb};
use tracing::debug;
use utoipa::ToSchema;

use super::body_budget::{self, BudgetPermit};
use super::header_sink::{HeaderLines, HeaderSink};
use super::problem::Problem;
use super::{Said, encode};
use crate::app::{Decided, SelectedPolicy};
use crate::decision_json::DecisionJson;
use crate::request::Rejection;

/// Most headers of a response, including the date and the length. Space for them is allocated once.
const MAX_HEADERS: usize = 6;

/// So much room may be kept for the next answer.
const KEPT_BYTES: usize = 8 * encode::ANSWER_BYTES;

/// An answer. It can be used again for the next one.
#[derive(Debug)]
pub(crate) struct Reply<H> {
    status: StatusCode,
    headers: H,
    json: Vec<u8>,
    /// What it takes of the room for all.
    room: Option<BudgetPermit>,
}

/// One that goes over the wire as it is.
pub(crate) type PlainReply = Reply<HeaderLines>;

impl Reply<HeaderMap> {
    /// One for hyper that says nothing yet.
    pub(super) fn for_hyper() -> Self {
        Self::with(HeaderMap::with_capacity(MAX_HEADERS))
    }
}

impl PlainReply {
    /// One that says nothing yet.
    pub(crate) fn new() -> Self {
        Self::with(HeaderLines::default())
    }
}

impl<H: HeaderSink> Reply<H> {
    fn with(headers: H) -> Self {
        Self { status: StatusCode::OK, headers, json: Vec::with_capacity(encode::ANSWER_BYTES), room: None }
    }

    /// Says nothing again.
    pub(super) fn clear(&mut self) {
        self.status = StatusCode::OK;
        self.headers.clear();
        self.json.clear();
        self.room = None;
    }

    /// Makes room for what there will be to say of each, before anything is decided.
    pub(super) fn make_room(
        &mut self,
        chosen: &[Result<SelectedPolicy, Rejection>],
    ) -> Result<(), Rejection> {
        let most_bytes = 2 + chosen.iter().map(encode::most_bytes).sum::<usize>();
        self.room = body_budget::for_response(most_bytes, chosen)?;
        self.json.reserve_exact(most_bytes);
        Ok(())
    }

    /// Says what was decided.
    pub(super) fn say(&mut self, decided: &Decided, clock: &dyn Clock) {
        self.headers.add_json_content_type();
        match encode::write(&mut self.json, decided) {
            Ok(()) => self.headers.add_rate_limit(decided, clock),
            Err(error) => self.fail(&error),
        }
    }

    /// Says what was decided of some of many, behind what was said of others. False if that could not be said.
    pub(super) fn say_more(&mut self, verb: Verb, decided: Vec<Result<Decided, Rejection>>) -> bool {
        for decided in decided {
            self.json.push(if self.json.is_empty() { b'[' } else { b',' });
            let written = match decided {
                Ok(decided) => encode::write(&mut self.json, &decided),
                Err(rejection) => serde_json::to_writer(&mut self.json, &refused(verb, rejection)),
            };
            if let Err(error) = written {
                self.fail(&error);
                return false;
            }
        }
        true
    }

    /// That was all of them.
    pub(super) fn end_all(&mut self) {
        self.headers.add_json_content_type();
        if self.json.is_empty() {
            self.json.push(b'[');
        }
        self.json.push(b']');
    }

    /// Says why nothing was decided.
    pub(super) fn refuse(&mut self, verb: Verb, rejection: Rejection) {
        self.complain(&refused(verb, rejection));
    }

    fn fail(&mut self, error: &serde_json::Error) {
        self.complain(&Problem::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()));
    }

    fn complain(&mut self, problem: &Problem) {
        self.clear();
        self.status = problem.status();
        problem.write_headers(&mut self.headers);
        // It has only strings and numbers, which can be written.
        let _ = serde_json::to_writer(&mut self.json, problem);
    }
}

/// What is said of a request that was refused, which is counted.
fn refused(verb: Verb, rejection: Rejection) -> Problem {
    debug!(?verb, kind = ?rejection.kind, %rejection, "refused");
    counter!("slidegate_refusals_total", "reason" => rejection.kind.name()).increment(1);
    Problem::from(rejection)
}

impl Reply<HeaderMap> {
    pub(super) fn into_response(self) -> Response<Said> {
        let mut response =
            Response::new(Either::Left(Full::new(body_budget::with_permit(self.json, self.room))));
        *response.status_mut() = self.status;
        *response.headers_mut() = self.headers;
        response
    }
}

impl PlainReply {
    /// Appends it in the words of hyper. `date` is the line with the date; `is_last` if there will be no other on the
    /// connection.
    pub(crate) fn write(&self, out: &mut Vec<u8>, date: &str, is_last: bool) {
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

    /// What it takes of the room for all, which is for whoever has written it down.
    pub(crate) fn take_room(&mut self) -> Option<BudgetPermit> {
        self.room.take()
    }

    /// After an answer to many, keeps no more room than one to a few needs.
    pub(crate) fn forget_what_is_large(&mut self) {
        if self.json.capacity() > KEPT_BYTES {
            self.json = Vec::with_capacity(encode::ANSWER_BYTES);
        }
        self.headers.0.shrink_to(KEPT_BYTES);
    }
}

/// What stands in a batch's answer: a decision, or why there is none: the request is not valid, or the store could not
/// decide. The others stand for themselves.
#[derive(Serialize, ToSchema)]
#[expect(dead_code, reason = "it is only described")]
#[serde(untagged)]
pub(super) enum BatchItemJson<'a> {
    Decided(DecisionJson<'a>),
    Undecided(Problem),
}
