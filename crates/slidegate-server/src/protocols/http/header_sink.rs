//! Destinations of the headers of a response.

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

/// Returns the current time for the style that reports absolute times.
pub(super) fn reset_base_ms(style: HeaderStyle, clock: &dyn Clock) -> u64 {
    if style == HeaderStyle::LegacyEpoch { clock.now_ms() } else { 0 }
}
