//! Headers of a response: a map for hyper, or the bytes of HTTP/1.1.

use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use slidegate::Clock;

use slidegate::tower::HeaderStyle;
use slidegate_engine::Decided;

use super::encoded_policy::EncodedPolicy;

/// Destination for the headers of a response. Callers add each header once.
pub(crate) trait HeaderSink {
    /// Adds a header.
    fn add(&mut self, name: HeaderName, value: HeaderValue);

    /// Adds `content-type: application/json`.
    fn add_json_content_type(&mut self);

    /// Adds the rate-limit headers of a decision.
    fn add_rate_limit(&mut self, encoded: &EncodedPolicy, decided: &Decided<'_>, clock: &dyn Clock);

    /// Removes all headers.
    fn clear(&mut self);
}

impl HeaderSink for HeaderMap {
    fn add(&mut self, name: HeaderName, value: HeaderValue) {
        self.insert(name, value);
    }

    fn add_json_content_type(&mut self) {
        self.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    }

    fn add_rate_limit(&mut self, encoded: &EncodedPolicy, decided: &Decided<'_>, clock: &dyn Clock) {
        let policy = &decided.selection.policy;
        let (style, headers) = (policy.headers(), encoded.headers(policy.policy()));
        style.write(self, headers, &decided.decision, reset_base_ms(style, clock));
    }

    fn clear(&mut self) {
        self.clear();
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
        style.write_lines(&mut self.0, headers, &decided.decision, reset_base_ms(style, clock));
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

/// Returns the current time for the style that reports absolute times.
fn reset_base_ms(style: HeaderStyle, clock: &dyn Clock) -> u64 {
    if style == HeaderStyle::LegacyEpoch { clock.now_ms() } else { 0 }
}
