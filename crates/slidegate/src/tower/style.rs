//! Styles of the rate-limit headers.

use http::HeaderName;
use http::header::RETRY_AFTER;
use slidegate_core::Decision;

use super::tier::Tier;
use crate::headers::{retry_after_seconds, whole_seconds};

pub(super) const RATE_LIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
pub(super) const RATE_LIMIT: HeaderName = HeaderName::from_static("ratelimit");
pub(super) const LEGACY_LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
pub(super) const LEGACY_REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
pub(super) const LEGACY_RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");

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
    /// Passes the name and the value of each header of a decision at `now_ms` to `header`, without an allocation. These
    /// are the headers that [`write`](Self::write) adds to a response without rate-limit headers.
    pub fn visit(
        self,
        tier: &Tier,
        decision: &Decision,
        now_ms: u64,
        mut header: impl FnMut(&HeaderName, &[u8]),
    ) {
        if !decision.is_counted() {
            return;
        }
        match self {
            Self::None => return,
            Self::Draft => {
                header(&RATE_LIMIT_POLICY, tier.policy_header().as_bytes());
                tier.with_limits(decision, |limits| header(&RATE_LIMIT, limits));
            }
            Self::LegacyEpoch | Self::LegacyDelta => {
                let numbers = LegacyNumbers::new(self, decision, now_ms);
                header(&LEGACY_LIMIT, itoa::Buffer::new().format(numbers.limit).as_bytes());
                header(&LEGACY_REMAINING, itoa::Buffer::new().format(numbers.remaining).as_bytes());
                header(&LEGACY_RESET, itoa::Buffer::new().format(numbers.reset).as_bytes());
            }
        }
        if let Some(seconds) = retry_after_seconds(decision) {
            header(&RETRY_AFTER, itoa::Buffer::new().format(seconds).as_bytes());
        }
    }
}

/// Numbers of the tightest quota in the headers of the legacy styles.
pub(super) struct LegacyNumbers {
    pub(super) limit: u64,
    pub(super) remaining: u64,
    /// Time at which all units are available again, in seconds since the epoch or from now.
    pub(super) reset: u64,
}

impl LegacyNumbers {
    pub(super) fn new(style: HeaderStyle, decision: &Decision, now_ms: u64) -> Self {
        let tightest = decision.tightest();
        let base_ms = if style == HeaderStyle::LegacyEpoch { now_ms } else { 0 };
        Self {
            limit: tightest.limit,
            remaining: tightest.remaining,
            reset: whole_seconds(base_ms + tightest.reset_after_ms),
        }
    }
}

#[cfg(test)]
mod tests {
    use slidegate_core::{FallbackReason, Policy, QuotaReport, Retry, Source};

    use http::HeaderMap;

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
            let tier = Tier::new(Policy::parse("api", quotas.iter().copied()).unwrap());
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
                    assert_equal_headers(style, &tier, &decision);
                }
            }
        }
    }

    fn assert_equal_headers(style: HeaderStyle, tier: &Tier, decision: &Decision) {
        let (mut written, mut visited) = (HeaderMap::new(), Vec::new());
        style.write(&mut written, tier, decision, 1_234_567);
        style.visit(tier, decision, 1_234_567, |name, value| visited.push((name.clone(), value.to_vec())));
        let written = written.iter().map(|(name, value)| (name.clone(), value.as_bytes().to_vec()));
        assert_eq!(visited, written.collect::<Vec<_>>(), "{style:?} {decision:?}");
    }
}
