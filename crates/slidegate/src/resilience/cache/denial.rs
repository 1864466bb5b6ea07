//! One denial: for how long it is true, and for whom.

use std::sync::Arc;

use slidegate_core::{Check, Decision, Policy, Quota, QuotaReport, Retry, Source};

use crate::store::invalidation::FeedVersion;

/// When a request went out and its answer came in, by the cache's clock.
#[derive(Clone, Copy, Debug)]
pub(super) struct Trip {
    pub(super) sent_ms: u64,
    pub(super) received_ms: u64,
}

/// A denial by the store.
///
/// **No denial is served which the store would not have given.** Let the store have said "after `r` ms". It decided at or
/// after the moment at which the request was sent, so that, of the `r` ms, at most those have passed here which have
/// passed since then. But its milliseconds and ours begin at different moments: the store may have decided at the very
/// end of one of its milliseconds, and then it allows the request after a little more than `r − 1` ms; and the clock here
/// may show a millisecond that is all but over. With `s` shown when the request was sent and `n` now, less
/// than `n + 1 − s` ms have passed; that is no more than `r − 1` as long as `n < s + r − 1`, which is when the denial ends.
/// If cache and store have the same clock, as in tests, the same formula ends the denial one millisecond early.
///
/// What else the key spends meanwhile only prolongs a denial, and a larger cost is denied wherever a smaller one is. What
/// shortens it is a refund, a reset or another limit: those by way of this cache end it at once, and those elsewhere when
/// the store hears of them. If it does not, or not for sure, they are noticed when the denial is `max_age` old. Nor is any
/// served that is older than ten seconds: so long do two clocks not drift apart by much, nor differ if one of them is set.
#[derive(Debug)]
pub(super) struct Denial {
    decision: Decision,
    cost: u64,
    /// Half of the policy's digest, by which a forget finds the denials to drop. To drop another one does no harm.
    policy: u64,
    /// The quotas as they were: a policy with others is another limit.
    quotas: Arc<[Quota]>,
    received_ms: u64,
    /// The first moment at which it is served no more unless the store knows that nothing was given back.
    blind_end_ms: u64,
    /// The first moment at which it is not served.
    end_ms: u64,
    /// What the store knew when it was asked.
    version: Option<FeedVersion>,
}

/// For how long denials are remembered.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ages {
    /// As long as nobody knows whether something was given back elsewhere.
    pub(super) blind_ms: u64,
    /// At all. In a longer time two clocks drift apart by more than a millisecond.
    pub(super) most_ms: u64,
}

impl Denial {
    /// What is to be remembered of a decision, if anything: only the store itself knows how long it denies, and what
    /// is decided beside a denial would be missed by whoever did that.
    pub(super) fn new(
        check: &Check<'_>,
        decision: &Decision,
        trip: Trip,
        ages: Ages,
        version: Option<FeedVersion>,
    ) -> Option<Self> {
        if decision.source() != Source::Store || decision.shadow().is_some() {
            return None;
        }
        let lasts_ms = match decision.retry()? {
            Retry::AfterMs(after_ms) => after_ms.saturating_sub(1),
            Retry::Never => u64::MAX,
        };
        let end_ms = |age_ms: u64| trip.sent_ms.saturating_add(lasts_ms.min(age_ms));
        let blind_end_ms = end_ms(ages.blind_ms);
        let denial = Self {
            decision: decision.clone(),
            cost: check.cost,
            policy: check.policy.digest()[0],
            quotas: Arc::clone(check.policy.shared_quotas()),
            received_ms: trip.received_ms,
            blind_end_ms,
            end_ms: if version.is_some() { end_ms(ages.most_ms) } else { blind_end_ms },
            version,
        };
        denial.is_live(trip.received_ms).then_some(denial)
    }

    /// Whether it holds at `now_ms`. Not before it was received: then the clock was set back, and nobody knows.
    pub(super) fn is_live(&self, now_ms: u64) -> bool {
        (self.received_ms..self.end_ms).contains(&now_ms)
            && !self.version.as_ref().is_some_and(FeedVersion::is_outdated)
            && (now_ms < self.blind_end_ms || self.version.as_ref().is_some_and(FeedVersion::is_current))
    }

    /// Whether it is a denial by this very limit.
    pub(super) fn is_under(&self, policy: &Policy) -> bool {
        Arc::ptr_eq(&self.quotas, policy.shared_quotas()) || *self.quotas == *policy.quotas()
    }

    /// Whether it is one of the policy.
    pub(super) fn is_of(&self, policy: &Policy) -> bool {
        self.policy == policy.digest()[0]
    }

    /// Whether it denies `cost` as well.
    pub(super) fn denies(&self, cost: u64) -> bool {
        cost >= self.cost
    }

    pub(super) fn end_ms(&self) -> u64 {
        self.end_ms
    }

    /// The answer to a request of `cost` at `now_ms`. Waits are counted from when the answer was received, which is
    /// after the store has decided, so that nobody is told to come too early. To a larger cost it names the wait for
    /// the smaller one.
    pub(super) fn tell(&self, cost: u64, now_ms: u64) -> Decision {
        let decision =
            self.decision.clone().told_later(now_ms.saturating_sub(self.received_ms)).by(Source::Cache);
        if decision.quotas().iter().all(|report| retry_of(report, cost) == report.retry) {
            return decision;
        }
        let correct = |report: &QuotaReport| QuotaReport { retry: retry_of(report, cost), ..*report };
        Decision::new(false, Source::Cache, decision.quotas().iter().map(correct).collect())
    }
}

/// What a quota says to a request of `cost`: never if it cannot hold that much, and nothing any more if it is another one
/// that still denies.
fn retry_of(report: &QuotaReport, cost: u64) -> Option<Retry> {
    if cost > report.limit {
        return Some(Retry::Never);
    }
    report.retry.filter(|retry| *retry != Retry::AfterMs(0))
}
