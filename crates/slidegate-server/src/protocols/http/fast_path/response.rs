//! Responses as the bytes of HTTP/1.1, without hyper.

use axum::http::{HeaderName, HeaderValue, StatusCode};
use slidegate::Clock;
use slidegate_engine::Decided;

use super::super::body_budget::BudgetPermit;
use super::super::encode;
use super::super::encoded_policy::EncodedPolicy;
use super::super::header_sink::{HeaderSink, reset_base_ms};
use super::super::reply::Reply;

/// Maximum capacity of a buffer that is reused for the next response.
const MAX_REUSED_BYTES: usize = 8 * encode::TYPICAL_RESPONSE_BYTES;

/// A response of the fast path.
pub(in crate::protocols::http) type PlainReply = Reply<HeaderLines>;

impl PlainReply {
    /// Returns an empty response.
    pub(crate) fn new() -> Self {
        Self::with_headers(HeaderLines::default())
    }
}

impl PlainReply {
    /// Appends the HTTP/1.1 response, in the same format as hyper.
    ///
    /// `date` is the complete `date` line. `is_last` announces the end of the connection.
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

    /// Takes the permit, which the caller holds until the written response is sent.
    pub(crate) fn take_permit(&mut self) -> Option<BudgetPermit> {
        self.permit.take()
    }

    /// Frees the buffer of a large response.
    pub(crate) fn shrink(&mut self) {
        if self.json.capacity() > MAX_REUSED_BYTES {
            self.json = Vec::with_capacity(encode::TYPICAL_RESPONSE_BYTES);
        }
        self.headers.0.shrink_to(MAX_REUSED_BYTES);
    }
}

/// Header lines of HTTP/1.1.
#[derive(Debug, Default)]
pub(crate) struct HeaderLines(pub(super) Vec<u8>);

impl HeaderSink for HeaderLines {
    fn add(&mut self, name: HeaderName, value: HeaderValue) {
        write_line(&mut self.0, name.as_str(), value.as_bytes());
    }

    fn add_json_content_type(&mut self) {
        self.0.extend_from_slice(b"content-type: application/json\r\n");
    }

    fn add_rate_limit(&mut self, encoded: &EncodedPolicy, decided: &Decided<'_>, clock: &dyn Clock) {
        let policy = &decided.selection.policy;
        let (style, headers) = (policy.headers(), encoded.headers(policy.policy()));
        style.visit(headers, &decided.decision, reset_base_ms(style, clock), |name, value| {
            write_line(&mut self.0, name.as_str(), value);
        });
    }

    fn clear(&mut self) {
        self.0.clear();
    }
}

fn write_line(out: &mut Vec<u8>, name: &str, value: &[u8]) {
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}
