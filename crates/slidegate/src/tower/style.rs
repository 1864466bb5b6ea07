//! Rate-limit headers on a response, merged with existing ones.

use http::header::{Entry, RETRY_AFTER};
use http::{HeaderMap, HeaderName, HeaderValue};
use slidegate_core::{Decision, QuotaReport};

use super::tier::Tier;
use crate::headers::{retry_after_seconds, whole_seconds};

const RATE_LIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const RATE_LIMIT: HeaderName = HeaderName::from_static("ratelimit");
const LEGACY_LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
const LEGACY_REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
const LEGACY_RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");

/// Style of the rate-limit headers. A denial that ends has `retry-after` in all styles except [`None`](Self::None).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum HeaderStyle {
    /// `RateLimit-Policy` and `RateLimit` of the IETF draft, as lists of all quotas.
    #[default]
    Draft,
    /// `X-RateLimit-Limit`, `-Remaining` and `-Reset` of the tightest quota, the last in seconds since the epoch.
    LegacyEpoch,
    /// Like `LegacyEpoch`, with the reset in seconds from now.
    LegacyDelta,
    /// No headers, not even `retry-after` on a denial.
    None,
}

impl HeaderStyle {
    /// Writes the headers of a decision at `now_ms`. Extends lists that an inner layer has written. Of two numbers, the
    /// stricter one stays.
    pub fn write(self, headers: &mut HeaderMap, tier: &Tier, decision: &Decision, now_ms: u64) {
        if !decision.is_counted() {
            return;
        }
        let tightest = decision.tightest();
        match self {
            Self::None => return,
            Self::Draft => {
                append(headers, RATE_LIMIT_POLICY, tier.policy_header().clone());
                if let Some(limits) = tier.limit_header(decision) {
                    append(headers, RATE_LIMIT, limits);
                }
            }
            Self::LegacyEpoch | Self::LegacyDelta => {
                let theirs = headers.get(LEGACY_REMAINING).and_then(number);
                if theirs.is_none_or(|theirs| tightest.remaining < theirs) {
                    headers.insert(LEGACY_LIMIT, tightest.limit.into());
                    headers.insert(LEGACY_REMAINING, tightest.remaining.into());
                    headers.insert(LEGACY_RESET, self.reset(&tightest, now_ms).into());
                }
            }
        }
        let theirs = || headers.get(RETRY_AFTER).and_then(number);
        let retry_after = match retry_after_seconds(decision) {
            Some(seconds) => Some(seconds.max(theirs().unwrap_or(0))),
            // An inner layer sets a retry time. It must not be earlier than the end of an exhausted quota here.
            None if tightest.remaining == 0 => {
                let empty = decision.quotas().into_iter().filter(|report| report.remaining == 0);
                let ours = whole_seconds(empty.map(|report| report.more_after_ms).max().unwrap_or(0));
                theirs().filter(|theirs| *theirs < ours).map(|_| ours)
            }
            None => None,
        };
        if let Some(seconds) = retry_after {
            headers.insert(RETRY_AFTER, seconds.into());
        }
    }
}

impl HeaderStyle {
    /// Appends the headers as lines of an HTTP/1.1 head, such as `ratelimit: …`, each with its line ending. For a
    /// response without such headers.
    pub fn write_lines(self, head: &mut Vec<u8>, tier: &Tier, decision: &Decision, now_ms: u64) {
        if !decision.is_counted() {
            return;
        }
        match self {
            Self::None => return,
            Self::Draft => {
                line(head, &RATE_LIMIT_POLICY, |head| {
                    head.extend_from_slice(tier.policy_header().as_bytes());
                });
                line(head, &RATE_LIMIT, |head| tier.write_limits(head, decision));
            }
            Self::LegacyEpoch | Self::LegacyDelta => {
                let tightest = decision.tightest();
                number_line(head, &LEGACY_LIMIT, tightest.limit);
                number_line(head, &LEGACY_REMAINING, tightest.remaining);
                number_line(head, &LEGACY_RESET, self.reset(&tightest, now_ms));
            }
        }
        if let Some(seconds) = retry_after_seconds(decision) {
            number_line(head, &RETRY_AFTER, seconds);
        }
    }

    /// Returns when all units are available again, in the legacy style's unit.
    fn reset(self, tightest: &QuotaReport, now_ms: u64) -> u64 {
        whole_seconds(if self == Self::LegacyEpoch { now_ms } else { 0 } + tightest.reset_after_ms)
    }
}

fn line(head: &mut Vec<u8>, name: &HeaderName, value: impl FnOnce(&mut Vec<u8>)) {
    head.extend_from_slice(name.as_str().as_bytes());
    head.extend_from_slice(b": ");
    value(head);
    head.extend_from_slice(b"\r\n");
}

fn number_line(head: &mut Vec<u8>, name: &HeaderName, number: u64) {
    line(head, name, |head| head.extend_from_slice(itoa::Buffer::new().format(number).as_bytes()));
}

fn number(value: &HeaderValue) -> Option<u64> {
    value.to_str().ok()?.parse().ok()
}

/// Puts our part of a list before the inner layer's: the outer layer decides first.
fn append(headers: &mut HeaderMap, name: HeaderName, ours: HeaderValue) {
    match headers.entry(name) {
        Entry::Vacant(entry) => {
            entry.insert(ours);
        }
        Entry::Occupied(mut entry) => {
            let mut list = ours.as_bytes().to_vec();
            // A trailing comma behind an empty line would make the list invalid.
            for theirs in entry.iter().filter(|theirs| !theirs.as_bytes().trim_ascii().is_empty()) {
                list.extend(b", ");
                list.extend(theirs.as_bytes());
            }
            if let Ok(list) = HeaderValue::from_bytes(&list) {
                entry.insert(list);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use slidegate_core::{Decision, Policy, Reason, Retry, Source};

    use super::*;

    #[test]
    fn lines_and_headers_are_equal() {
        let policy = Policy::parse("api", ["5/1m", "7/1h token-bucket"]).unwrap();
        let tier = Tier::new(policy);
        let report = |remaining, retry| {
            let mut report = QuotaReport::unused(5).with_retry(retry);
            (report.used, report.remaining) = (5 - remaining, remaining);
            (report.more_after_ms, report.reset_after_ms) = (1001, 59_999);
            report
        };
        let two = |is_allowed, source, retry| {
            Decision::new(is_allowed, source, vec![report(0, retry), report(5, None)])
        };
        for decision in [
            two(true, Source::Store, None),
            two(false, Source::Cache, Some(Retry::AfterMs(1001))),
            two(false, Source::Store, Some(Retry::Never)),
            two(true, Source::Fallback(Reason::Resting), None),
            two(true, Source::Rule, None),
        ] {
            for style in
                [HeaderStyle::Draft, HeaderStyle::LegacyEpoch, HeaderStyle::LegacyDelta, HeaderStyle::None]
            {
                let (mut headers, mut lines) = (HeaderMap::new(), Vec::new());
                style.write(&mut headers, &tier, &decision, 1_234_567);
                style.write_lines(&mut lines, &tier, &decision, 1_234_567);
                let mut expected = String::new();
                for (name, value) in &headers {
                    expected += &[name.as_str(), ": ", value.to_str().unwrap(), "\r\n"].concat();
                }
                assert_eq!(String::from_utf8(lines).unwrap(), expected, "{style:?} {decision:?}");
            }
        }
    }
}
