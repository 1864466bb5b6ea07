//! The headers of an answer: as hyper takes them, or as they go over the wire.

use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use slidegate::Clock;

use crate::app::Decided;

/// Where headers are put. Each is put there once.
pub(crate) trait Head {
    fn add(&mut self, name: HeaderName, value: HeaderValue);

    /// The one that almost every answer has: that it is JSON.
    fn add_json(&mut self);

    /// Those that say what was decided.
    fn add_limits(&mut self, decided: &Decided, clock: &dyn Clock);

    fn clear(&mut self);
}

impl Head for HeaderMap {
    fn add(&mut self, name: HeaderName, value: HeaderValue) {
        self.insert(name, value);
    }

    fn add_json(&mut self) {
        self.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    }

    fn add_limits(&mut self, decided: &Decided, clock: &dyn Clock) {
        decided.write_headers(self, clock);
    }

    fn clear(&mut self) {
        self.clear();
    }
}

/// Lines of HTTP/1.1.
#[derive(Debug, Default)]
pub(crate) struct Lines(pub(super) Vec<u8>);

impl Head for Lines {
    fn add(&mut self, name: HeaderName, value: HeaderValue) {
        line(&mut self.0, name.as_str(), value.as_bytes());
    }

    fn add_json(&mut self) {
        self.0.extend_from_slice(b"content-type: application/json\r\n");
    }

    fn add_limits(&mut self, decided: &Decided, clock: &dyn Clock) {
        decided.write_header_lines(&mut self.0, clock);
    }

    fn clear(&mut self) {
        self.0.clear();
    }
}

fn line(out: &mut Vec<u8>, name: &str, value: &[u8]) {
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}
