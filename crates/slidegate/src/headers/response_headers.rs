//! Rate-limit headers of a decision before they are merged into a response.

use std::iter;

use http::header::{Entry, RETRY_AFTER};
use http::{HeaderMap, HeaderName, HeaderValue};
use slidegate_core::{Decision, QuotaReport, Source};

use super::style::{
    HeaderStyle, ItemNumbers, LEGACY_LIMIT, LEGACY_REMAINING, LEGACY_RESET, LegacyNumbers, PolicyHeaders,
    RATE_LIMIT, RATE_LIMIT_POLICY, with_limit_list,
};
use super::{retry_after_seconds, whole_seconds};

/// Rate-limit headers of a decision. Holds numbers instead of the decision, which is several times as large and would be
/// moved with the future of the response.
pub(crate) struct ResponseHeaders {
    limits: Limits,
    retry_after: RetryAfter,
}

enum Limits {
    None,
    /// Draft style with one quota, by far the most common case: its name is at the start of the first value.
    One {
        policy: HeaderValue,
        name_bytes: usize,
        numbers: ItemNumbers,
    },
    /// Draft style with several quotas.
    Many {
        policy: HeaderValue,
        limits: HeaderValue,
    },
    Legacy(LegacyNumbers),
}

/// Change of the header `retry-after`, in seconds.
enum RetryAfter {
    Unchanged,
    /// At least this.
    AtLeast(u64),
    /// At least this if an inner layer has set it: it must not be earlier than the end of an exhausted quota here.
    AtLeastIfSet(u64),
}

impl Limits {
    #[inline(always)]
    fn one(policy: &PolicyHeaders, numbers: ItemNumbers) -> Self {
        Self::One { policy: policy.policy_header().clone(), name_bytes: policy.first_name_bytes(), numbers }
    }
}

impl ResponseHeaders {
    const NONE: Self = Self { limits: Limits::None, retry_after: RetryAfter::Unchanged };

    /// The most common case is inlined: an allowed decision of the store about one quota.
    #[inline(always)]
    pub(crate) fn new(style: HeaderStyle, policy: &PolicyHeaders, decision: &Decision, now_ms: u64) -> Self {
        let is_plain = decision.is_allowed() && decision.source() == Source::Store;
        if style == HeaderStyle::Draft && policy.has_one_quota() && is_plain {
            policy.assert_match(decision);
            // A lazy decision computes its report on each access.
            let report = decision.tightest();
            let numbers = ItemNumbers::from(&report);
            let is_exhausted = report.remaining == 0;
            return Self {
                limits: Limits::one(policy, numbers),
                retry_after: if is_exhausted {
                    RetryAfter::AtLeastIfSet(numbers.wait_seconds)
                } else {
                    RetryAfter::Unchanged
                },
            };
        }
        Self::of_any(style, policy, decision, now_ms)
    }

    #[inline(never)]
    fn of_any(style: HeaderStyle, policy: &PolicyHeaders, decision: &Decision, now_ms: u64) -> Self {
        if !decision.is_counted() {
            return Self::NONE;
        }
        policy.assert_match(decision);
        let reports = decision.quotas();
        let limits = match (style, &*reports) {
            (HeaderStyle::None, _) => return Self::NONE,
            (HeaderStyle::Draft, [report]) => Limits::one(policy, report.into()),
            (HeaderStyle::Draft, _) => Limits::Many {
                policy: policy.policy_header().clone(),
                limits: policy.with_limits(decision, header_value),
            },
            (HeaderStyle::LegacyEpoch | HeaderStyle::LegacyDelta, [report]) => {
                Limits::Legacy(LegacyNumbers::new(style, report, now_ms))
            }
            (HeaderStyle::LegacyEpoch | HeaderStyle::LegacyDelta, _) => {
                Limits::Legacy(LegacyNumbers::new(style, &decision.tightest(), now_ms))
            }
        };
        Self { limits, retry_after: RetryAfter::new(decision, &reports) }
    }

    /// Adds the headers to those of a response. Extends lists that an inner layer has written. Of two numbers, the
    /// stricter one stays.
    pub(crate) fn write(self, headers: &mut HeaderMap) {
        match self.limits {
            Limits::None => {}
            Limits::One { policy, name_bytes, numbers } => {
                let name = &policy.as_bytes()[..name_bytes];
                let limits = with_limit_list(iter::once((name, numbers)), header_value);
                prepend(headers, RATE_LIMIT_POLICY, policy);
                prepend(headers, RATE_LIMIT, limits);
            }
            Limits::Many { policy, limits } => {
                prepend(headers, RATE_LIMIT_POLICY, policy);
                prepend(headers, RATE_LIMIT, limits);
            }
            Limits::Legacy(LegacyNumbers { limit, remaining, reset }) => {
                let existing = headers.get(LEGACY_REMAINING).and_then(number);
                if existing.is_none_or(|existing| remaining < existing) {
                    headers.insert(LEGACY_LIMIT, number_value(limit));
                    headers.insert(LEGACY_REMAINING, number_value(remaining));
                    headers.insert(LEGACY_RESET, number_value(reset));
                }
            }
        }
        self.retry_after.write(headers);
    }
}

impl HeaderStyle {
    /// Writes the headers of a decision at `now_ms`. `policy` has the constant parts of the headers under the policy of the
    /// decision. Extends lists that an inner layer has written. Of two numbers, the stricter one stays.
    pub fn write(self, headers: &mut HeaderMap, policy: &PolicyHeaders, decision: &Decision, now_ms: u64) {
        ResponseHeaders::new(self, policy, decision, now_ms).write(headers);
    }
}

impl RetryAfter {
    fn new(decision: &Decision, reports: &[QuotaReport]) -> Self {
        if let Some(seconds) = retry_after_seconds(decision) {
            return Self::AtLeast(seconds);
        }
        let exhausted = reports.iter().filter(|report| report.remaining == 0);
        let end_ms = exhausted.map(|report| report.more_after_ms).max();
        end_ms.map_or(Self::Unchanged, |end_ms| Self::AtLeastIfSet(whole_seconds(end_ms)))
    }

    fn write(&self, headers: &mut HeaderMap) {
        let existing = || headers.get(RETRY_AFTER).and_then(number);
        let seconds = match *self {
            Self::Unchanged => None,
            Self::AtLeast(own) => Some(own.max(existing().unwrap_or(0))),
            Self::AtLeastIfSet(own) => existing().filter(|existing| *existing < own).map(|_| own),
        };
        if let Some(seconds) = seconds {
            headers.insert(RETRY_AFTER, number_value(seconds));
        }
    }
}

/// Returns a value of visible ASCII characters, in one allocation of its exact length.
fn header_value(text: &[u8]) -> HeaderValue {
    HeaderValue::from_bytes(text).unwrap_or_else(|_| HeaderValue::from_static(""))
}

/// `HeaderValue::from` allocates twice for each number.
fn number_value(number: u64) -> HeaderValue {
    header_value(itoa::Buffer::new().format(number).as_bytes())
}

fn number(value: &HeaderValue) -> Option<u64> {
    value.to_str().ok()?.parse().ok()
}

/// Inserts the part of this layer before that of the inner layer, because the outer layer decides first.
fn prepend(headers: &mut HeaderMap, name: HeaderName, own: HeaderValue) {
    match headers.entry(name) {
        Entry::Vacant(entry) => {
            entry.insert(own);
        }
        Entry::Occupied(mut entry) => {
            let mut list = own.as_bytes().to_vec();
            // A trailing comma behind an empty line would make the list invalid.
            for existing in entry.iter().filter(|existing| !existing.as_bytes().trim_ascii().is_empty()) {
                list.extend(b", ");
                list.extend(existing.as_bytes());
            }
            if let Ok(list) = HeaderValue::from_bytes(&list) {
                entry.insert(list);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use slidegate_core::{FallbackReason, Policy, Retry};

    use super::*;

    #[test]
    fn visited_and_written_headers_are_equal() {
        let report = |remaining, retry| {
            let mut report = QuotaReport::unused(5).with_retry(retry);
            (report.used, report.remaining) = (5 - remaining, remaining);
            (report.more_after_ms, report.reset_after_ms) = (1001, 59_999);
            report
        };
        for quotas in [&["5/1m"][..], &["5/1m", "7/1h token-bucket"]] {
            let policy = PolicyHeaders::new(&Policy::parse("api", quotas.iter().copied()).unwrap());
            let decided = |is_allowed, source, retry| {
                let reports = [report(0, retry), report(5, None)];
                Decision::new(is_allowed, source, reports[..quotas.len()].to_vec())
            };
            for decision in [
                decided(true, Source::Store, None),
                decided(false, Source::Cache, Some(Retry::AfterMs(1001))),
                decided(false, Source::Store, Some(Retry::Never)),
                decided(true, Source::Fallback(FallbackReason::Resting), None),
                decided(true, Source::Rule, None),
            ] {
                for style in [
                    HeaderStyle::Draft,
                    HeaderStyle::LegacyEpoch,
                    HeaderStyle::LegacyDelta,
                    HeaderStyle::None,
                ] {
                    assert_equal_headers(style, &policy, &decision);
                }
            }
        }
    }

    fn assert_equal_headers(style: HeaderStyle, policy: &PolicyHeaders, decision: &Decision) {
        let (mut written, mut visited) = (HeaderMap::new(), Vec::new());
        style.write(&mut written, policy, decision, 1_234_567);
        style.visit(policy, decision, 1_234_567, |name, value| {
            visited.push((name.clone(), value.to_vec()));
        });
        let written = written.iter().map(|(name, value)| (name.clone(), value.as_bytes().to_vec()));
        assert_eq!(visited, written.collect::<Vec<_>>(), "{style:?} {decision:?}");
    }

    #[test]
    #[cfg(debug_assertions)]
    fn the_headers_of_another_policy_are_a_bug() {
        let of = |quotas: &[&str]| PolicyHeaders::new(&Policy::parse("api", quotas.iter().copied()).unwrap());
        let decided = |count| Decision::new(true, Source::Store, vec![QuotaReport::unused(5); count]);
        for (policy, decision) in [(of(&["5/1m"]), decided(2)), (of(&["5/1m", "7/1h"]), decided(1))] {
            for style in [HeaderStyle::Draft, HeaderStyle::LegacyDelta] {
                let panics = |write: &dyn Fn()| catch_unwind(AssertUnwindSafe(write)).is_err();
                assert!(panics(&|| style.write(&mut HeaderMap::new(), &policy, &decision, 0)), "{style:?}");
                assert!(panics(&|| style.visit(&policy, &decision, 0, |_, _| ())), "{style:?}");
            }
        }
    }
}
