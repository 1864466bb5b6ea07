//! Pauses that servers request in their responses.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use http::header::RETRY_AFTER;
use http::{HeaderMap, HeaderValue, StatusCode, response};

/// Maximum number of servers with a pause.
const MAX_PAUSES: usize = 4096;
/// Maximum pause. Longer ones are shortened to it.
const MAX_PAUSE_MS: u64 = 24 * 60 * 60 * 1000;

/// gRPC status codes as header values.
const RESOURCE_EXHAUSTED: &[u8] = b"8";
const UNAVAILABLE: &[u8] = b"14";

/// End of the pause of each key.
#[derive(Debug, Default)]
pub(super) struct Pauses(Mutex<HashMap<Vec<u8>, u64>>);

impl Pauses {
    /// Returns the remaining pause of `key`.
    pub(super) fn left_ms(&self, key: &[u8], now_ms: u64) -> u64 {
        let pauses = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        pauses.get(key).map_or(0, |until_ms| until_ms.saturating_sub(now_ms))
    }

    /// Records the pause that a response requests.
    pub(super) fn record(&self, key: &[u8], response: &response::Parts, now_ms: u64) {
        let Some(pause_ms) = pause_ms(response, now_ms) else { return };
        let until_ms = now_ms.saturating_add(pause_ms.min(MAX_PAUSE_MS));
        let mut pauses = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if pauses.len() >= MAX_PAUSES && !pauses.contains_key(key) {
            pauses.retain(|_, until_ms| *until_ms > now_ms);
            if pauses.len() >= MAX_PAUSES {
                return;
            }
        }
        let known = pauses.entry(key.to_vec()).or_default();
        *known = until_ms.max(*known);
    }
}

/// Returns the `Retry-After` of a rejection, or the wait for an exhausted quota in `RateLimit`, whichever is longer.
fn pause_ms(response: &response::Parts, now_ms: u64) -> Option<u64> {
    let grpc = response.headers.get("grpc-status").map(HeaderValue::as_bytes);
    let is_rejected =
        matches!(response.status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE)
            || matches!(grpc, Some(RESOURCE_EXHAUSTED | UNAVAILABLE));
    let retry_after = if is_rejected { retry_after_ms(&response.headers, now_ms) } else { None };
    retry_after.max(spent_for_ms(&response.headers))
}

/// Parses `Retry-After`, which is a number of seconds or a date.
fn retry_after_ms(headers: &HeaderMap, now_ms: u64) -> Option<u64> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    if let Ok(seconds) = text.parse::<u64>() {
        return Some(seconds.saturating_mul(1000));
    }
    let date = httpdate::parse_http_date(text).ok()?;
    let date_ms = date.duration_since(std::time::UNIX_EPOCH).ok()?.as_millis();
    Some(u64::try_from(date_ms).unwrap_or(u64::MAX).saturating_sub(now_ms))
}

/// Returns the longest `t` of all quotas whose `r` is 0.
fn spent_for_ms(headers: &HeaderMap) -> Option<u64> {
    let lines = headers.get_all("ratelimit").iter().filter_map(|line| line.to_str().ok());
    lines.flat_map(items).filter_map(spent_ms).max()
}

fn spent_ms(item: &str) -> Option<u64> {
    let parameters = item.rsplit('"').next()?;
    let number = |name: &str| {
        let mut all = parameters.split(';').filter_map(|parameter| parameter.trim().split_once('='));
        all.find(|(key, _)| *key == name).and_then(|(_, value)| value.parse::<u64>().ok())
    };
    (number("r")? == 0).then(|| number("t").map(|seconds| seconds.saturating_mul(1000)))?
}

/// Splits a list at commas outside of quoted names.
fn items(line: &str) -> impl Iterator<Item = &str> {
    let (mut is_quoted, mut is_escaped) = (false, false);
    line.split(move |character| {
        let was_escaped = std::mem::take(&mut is_escaped);
        match character {
            '"' if !was_escaped => is_quoted = !is_quoted,
            '\\' if is_quoted && !was_escaped => is_escaped = true,
            _ => {}
        }
        character == ',' && !is_quoted
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pause(status: u16, headers: &[(&str, &str)]) -> Option<u64> {
        let mut response = http::Response::builder().status(status);
        for (name, value) in headers {
            response = response.header(*name, *value);
        }
        pause_ms(&response.body(()).unwrap().into_parts().0, 784_111_000_000)
    }

    #[test]
    fn pauses_are_parsed_from_responses() {
        assert_eq!(pause(429, &[("retry-after", "30")]), Some(30_000));
        assert_eq!(pause(503, &[("retry-after", "Sun, 06 Nov 1994 08:49:37 GMT")]), Some(777_000));
        assert_eq!(pause(429, &[("retry-after", "Sun, 06 Nov 1994 08:00:00 GMT")]), Some(0), "in the past");
        assert_eq!(pause(200, &[("retry-after", "30")]), None, "not a rejection");
        for (status, expected) in [("8", Some(30_000)), ("14", Some(30_000)), ("0", None), ("5", None)] {
            assert_eq!(pause(200, &[("grpc-status", status), ("retry-after", "30")]), expected, "{status}");
        }
        assert_eq!(pause(200, &[("ratelimit", r#""a";r=5;t=30"#)]), None, "units remain");
        assert_eq!(pause(200, &[("ratelimit", r#""a";r=0;t=30, "b";r=0;t=40, "c";r=1;t=90"#)]), Some(40_000));
        assert_eq!(pause(200, &[("ratelimit", r#""x, \";r=0;t=9, ";r=0;t=7"#)]), Some(7_000));
        assert_eq!(
            pause(200, &[("ratelimit", r#""a";r=1;t=1"#), ("ratelimit", r#""b";r=0;t=2"#)]),
            Some(2_000)
        );
        for garbage in ["", "soon", "-1", "1e9", "\"", ";;;,,,", "r=0", "\"a\";r=0;t=x"] {
            assert_eq!(pause(429, &[("retry-after", garbage), ("ratelimit", garbage)]), None, "{garbage}");
        }
    }

    #[test]
    fn pauses_are_bounded_in_number_and_length() {
        let pauses = Pauses::default();
        let rejection = http::Response::builder().status(429).header("retry-after", "99999999999");
        let (rejection, ()) = rejection.body(()).unwrap().into_parts();
        for number in 0..2 * MAX_PAUSES {
            pauses.record(&number.to_be_bytes(), &rejection, 1000);
        }
        assert_eq!(pauses.0.lock().unwrap().len(), MAX_PAUSES);
        assert_eq!(pauses.left_ms(&0_usize.to_be_bytes(), 1000), MAX_PAUSE_MS, "the pause is capped");
    }
}
