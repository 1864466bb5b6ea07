//! One cached denial: its lifetime and the requests that it denies.

use std::sync::Arc;

use slidegate_core::{Check, Decision, Policy, Quota, QuotaReport, Retry, Source};

use crate::store::invalidation::FeedVersion;

/// Times at which a request was sent and its response received, by the cache's clock.
#[derive(Clone, Copy, Debug)]
pub(super) struct RoundTrip {
    pub(super) sent_at_ms: u64,
    pub(super) received_at_ms: u64,
}

/// Cached denial of the store.
///
/// **The cache never denies a request that the store would allow.** Suppose that the store denied with "retry after `r`
/// ms". It decided at or after the moment the request was sent, so at most the time since then has elapsed of these `r`
/// ms. The milliseconds of both clocks begin at different moments: the store may have decided at the very end of one of
/// its milliseconds and then allows the request after little more than `r − 1` ms, and a millisecond shown by the local
/// clock may be almost over. With `s` shown when the request was sent and `n` shown now, less than `n + 1 − s` ms have
/// elapsed. That is at most `r − 1` while `n < s + r − 1`, which is therefore the expiry of the denial. If the cache
/// and the store share one clock, as in tests, the formula expires the denial one millisecond early.
///
/// Further spending of the key only extends the denial, and a store that denies a cost also denies every larger one.
/// The denial is shortened by a refund, a reset or a changed limit:
///
/// - If the change passes through this cache, the denial is dropped at once.
/// - If the change comes from another node, the denial ends when the store's invalidation feed reports it.
/// - Without a current feed, the denial ends when it reaches the age `max_age`.
///
/// No denial is served beyond an age of ten seconds. This bounds the drift between the two clocks, and the effect of a
/// clock that is set.
#[derive(Debug)]
pub(super) struct Denial {
    decision: Decision,
    cost: u64,
    /// First half of the policy's digest, by which a policy reset finds its denials. Dropping a denial of another
    /// policy is harmless.
    policy_digest: u64,
    /// Quotas that were violated. A policy with other quotas is a different limit.
    quotas: Arc<[Quota]>,
    received_at_ms: u64,
    /// Expiry while the store cannot confirm that nothing was invalidated.
    unconfirmed_expires_at_ms: u64,
    /// Expiry in any case.
    expires_at_ms: u64,
    /// Version of the invalidation feed when the request was sent.
    version: Option<FeedVersion>,
}

/// Maximum ages of cached denials.
#[derive(Clone, Copy, Debug)]
pub(super) struct MaxAges {
    /// Maximum age while the store cannot confirm that other nodes invalidated nothing.
    pub(super) unconfirmed_ms: u64,
    /// Maximum age while the store confirms it.
    pub(super) confirmed_ms: u64,
}

impl Denial {
    /// Returns the denial to cache, if the decision is cacheable. Only a denial by the store itself has a known
    /// duration. A decision that carries a shadow decision is not cached, because the candidate would miss the
    /// requests.
    pub(super) fn from_decision(
        check: &Check<'_>,
        decision: &Decision,
        trip: RoundTrip,
        max_ages: MaxAges,
        version: Option<FeedVersion>,
    ) -> Option<Self> {
        if decision.source() != Source::Store || decision.shadow().is_some() {
            return None;
        }
        let duration_ms = match decision.retry()? {
            Retry::AfterMs(after_ms) => after_ms.saturating_sub(1),
            Retry::Never => u64::MAX,
            // A denial without a known end is not cached.
            _ => return None,
        };
        let expiry_ms = |max_age_ms: u64| trip.sent_at_ms.saturating_add(duration_ms.min(max_age_ms));
        let unconfirmed_expires_at_ms = expiry_ms(max_ages.unconfirmed_ms);
        let denial = Self {
            decision: decision.clone(),
            cost: check.cost,
            policy_digest: check.policy.digest()[0],
            quotas: Arc::clone(check.policy.shared_quotas()),
            received_at_ms: trip.received_at_ms,
            unconfirmed_expires_at_ms,
            expires_at_ms: if version.is_some() {
                expiry_ms(max_ages.confirmed_ms)
            } else {
                unconfirmed_expires_at_ms
            },
            version,
        };
        denial.is_live(trip.received_at_ms).then_some(denial)
    }

    /// Returns whether the denial holds at `now_ms`. A time before its receipt means that the clock was set back, so
    /// its age is unknown and it does not hold.
    pub(super) fn is_live(&self, now_ms: u64) -> bool {
        (self.received_at_ms..self.expires_at_ms).contains(&now_ms)
            && !self.version.as_ref().is_some_and(FeedVersion::is_outdated)
            && (now_ms < self.unconfirmed_expires_at_ms
                || self.version.as_ref().is_some_and(FeedVersion::is_current))
    }

    /// Returns whether the policy still has the quotas that denied.
    pub(super) fn has_quotas_of(&self, policy: &Policy) -> bool {
        Arc::ptr_eq(&self.quotas, policy.shared_quotas()) || *self.quotas == *policy.quotas()
    }

    /// Returns whether the denial belongs to the policy, whatever its quotas are.
    pub(super) fn belongs_to(&self, policy: &Policy) -> bool {
        self.policy_digest == policy.digest()[0]
    }

    /// Returns whether a request of this cost is denied too.
    pub(super) fn denies(&self, cost: u64) -> bool {
        cost >= self.cost
    }

    pub(super) fn expires_at_ms(&self) -> u64 {
        self.expires_at_ms
    }

    /// Returns the decision for a request of `cost` at `now_ms`. Retry times count from the receipt of the response,
    /// which is after the store's decision, so a retry never comes too early. A larger cost gets the retry time of the
    /// cached smaller one.
    pub(super) fn decision_for(&self, cost: u64, now_ms: u64) -> Decision {
        let decision = self
            .decision
            .clone()
            .aged_by_ms(now_ms.saturating_sub(self.received_at_ms))
            .with_source(Source::Cache);
        if decision.quotas().iter().all(|report| retry_for(report, cost) == report.retry) {
            return decision;
        }
        let with_retry = |report: &QuotaReport| report.with_retry(retry_for(report, cost));
        Decision::new(false, Source::Cache, decision.quotas().iter().map(with_retry).collect())
    }
}

/// Returns the retry that a quota reports for a request of `cost`: never if the cost exceeds the limit, and none if its
/// own wait is over while another quota still denies.
fn retry_for(report: &QuotaReport, cost: u64) -> Option<Retry> {
    if cost > report.limit {
        return Some(Retry::Never);
    }
    report.retry.filter(|retry| *retry != Retry::AfterMs(0))
}
