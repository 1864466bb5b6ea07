//! What a decision says.

use core::slice;

/// Who made the decision, so that a degraded one is never mistaken for a sure one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Source {
    /// The store that holds the counts.
    Store,
}

impl Source {
    /// The name in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Store => "store",
        }
    }
}

/// When a denied request may be repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Retry {
    /// After this many milliseconds it is allowed if nothing else comes, and not one earlier.
    AfterMs(u64),
    /// The cost exceeds what the quota can ever hold.
    Never,
}

/// What one quota of the policy says, after the decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuotaReport {
    /// The most that can be spent: the limit, or the burst of a token bucket.
    pub limit: u64,
    /// What is counted now. May exceed `limit` after the limit was lowered.
    pub used: u64,
    /// What can be spent now.
    pub remaining: u64,
    /// Until more can be spent than now, if nothing else comes; 0 if nothing is counted.
    pub more_after_ms: u64,
    /// Until nothing is counted any more.
    pub reset_after_ms: u64,
    /// When to come back, if this quota denied the request.
    pub retry: Option<Retry>,
}

/// Allowed or denied, with the numbers of every quota.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "a denial must be acted upon"]
pub struct Decision {
    allowed: bool,
    source: Source,
    reports: Reports,
}

/// One quota is by far the most common case and is decided without an allocation.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Reports {
    One(QuotaReport),
    Many(Box<[QuotaReport]>),
}

impl Decision {
    /// A decision made elsewhere, by a store that computes it itself. There is a report for each quota of the policy.
    ///
    /// # Panics
    ///
    /// If there is none.
    pub fn new(is_allowed: bool, source: Source, mut reports: Vec<QuotaReport>) -> Self {
        assert!(!reports.is_empty(), "a policy has at least one quota");
        let reports = match (reports.pop(), reports.is_empty()) {
            (Some(only), true) => Reports::One(only),
            (last, _) => {
                reports.extend(last);
                Reports::Many(reports.into())
            }
        };
        Self { allowed: is_allowed, source, reports }
    }

    #[inline(always)]
    pub(crate) fn one(allowed: bool, report: QuotaReport) -> Self {
        Self { allowed, source: Source::Store, reports: Reports::One(report) }
    }

    pub(crate) fn many(allowed: bool, reports: Vec<QuotaReport>) -> Self {
        Self { allowed, source: Source::Store, reports: Reports::Many(reports.into()) }
    }

    /// Whether the request may proceed.
    #[inline(always)]
    pub fn is_allowed(&self) -> bool {
        self.allowed
    }

    /// Who made the decision.
    pub fn source(&self) -> Source {
        self.source
    }

    /// Every quota's numbers, in the order of the policy.
    #[inline(always)]
    pub fn quotas(&self) -> &[QuotaReport] {
        match &self.reports {
            Reports::One(report) => slice::from_ref(report),
            Reports::Many(reports) => reports,
        }
    }

    /// The quota with the least left: the one that a caller meets first.
    pub fn tightest(&self) -> &QuotaReport {
        let key = |report: &&QuotaReport| {
            (report.remaining, core::cmp::Reverse(report.retry), core::cmp::Reverse(report.reset_after_ms))
        };
        match &self.reports {
            Reports::One(report) => report,
            Reports::Many(reports) => reports.iter().min_by_key(key).unwrap_or(&reports[0]),
        }
    }

    /// The limit of the tightest quota.
    pub fn limit(&self) -> u64 {
        self.tightest().limit
    }

    /// Until the tightest quota is whole again.
    pub fn reset_after_ms(&self) -> u64 {
        self.tightest().reset_after_ms
    }

    /// What can be spent now: no more than the tightest quota has left.
    #[inline(always)]
    pub fn remaining(&self) -> u64 {
        self.tightest().remaining
    }

    /// When to come back; `None` if allowed. The longest of all violated quotas.
    #[inline(always)]
    pub fn retry(&self) -> Option<Retry> {
        self.quotas().iter().filter_map(|report| report.retry).max()
    }

    /// The wait before this cost can be allowed; `None` if allowed, or if it never can.
    #[inline(always)]
    pub fn retry_after_ms(&self) -> Option<u64> {
        match self.retry() {
            Some(Retry::AfterMs(ms)) => Some(ms),
            Some(Retry::Never) | None => None,
        }
    }

    /// Whether the cost exceeds what some quota can ever hold.
    pub fn is_never(&self) -> bool {
        self.retry() == Some(Retry::Never)
    }

    /// The positions of the quotas that denied the request.
    pub fn violated(&self) -> impl Iterator<Item = usize> + '_ {
        self.quotas().iter().enumerate().filter(|(_, report)| report.retry.is_some()).map(|(index, _)| index)
    }
}
