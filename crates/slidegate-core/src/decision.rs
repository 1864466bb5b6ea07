//! What a decision says.

use core::{fmt, slice};

use crate::policy::Policy;
use crate::quota::Quota;
use crate::reports::QuotaReports;
use crate::within::Within;

/// Who made the decision, so that a degraded one is never mistaken for a sure one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Source {
    /// The store that holds the counts.
    Store,
    /// A denial by the store that is remembered until it ends.
    Cache,
    /// What the policy asks for when the store does not decide, and why it did not.
    Fallback(Reason),
    /// A list or a switch, before anything was counted.
    Rule,
}

impl Source {
    /// The name in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Store => "store",
            Self::Cache => "cache",
            Self::Fallback(_) => "fallback",
            Self::Rule => "rule",
        }
    }

    /// Why the store did not decide, if it did not.
    pub const fn reason(self) -> Option<Reason> {
        match self {
            Self::Fallback(reason) => Some(reason),
            Self::Store | Self::Cache | Self::Rule => None,
        }
    }
}

/// Why a store did not decide.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Reason {
    /// It did not answer in time.
    Timeout,
    /// It could not be reached, or its answer was lost.
    Unavailable,
    /// It has no room.
    Full,
    /// It refuses in a way that does not pass by itself.
    Refused,
    /// It failed a moment ago, and is left alone to recover.
    Resting,
}

impl Reason {
    /// The name in JSON and in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Timeout => "timeout",
            Self::Unavailable => "unavailable",
            Self::Full => "full",
            Self::Refused => "refused",
            Self::Resting => "resting",
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
    /// What is counted now. May exceed `limit` after a charge, or after the limit was lowered.
    pub used: u64,
    /// What can be spent now.
    pub remaining: u64,
    /// Until more can be spent than now, if nothing else comes; 0 if nothing is counted.
    pub more_after_ms: u64,
    /// Until nothing is counted any more.
    pub reset_after_ms: u64,
    /// When to come back, if this quota denied the request.
    pub retry: Option<Retry>,
    /// Counted in the previous window, in full, of which `used` has the part that still overlaps; 0 but for a sliding window.
    pub previous: u64,
    /// Counted in the current window; all that is counted where there is but one.
    pub current: u64,
    /// The age of the oldest entry of a log that is counted; of a strict window, of its oldest pair.
    pub oldest_age_ms: Option<u64>,
}

impl QuotaReport {
    /// The same of a request that is not denied.
    pub(crate) fn without_retry(self) -> Self {
        Self { retry: None, ..self }
    }
}

/// Allowed or denied, with the numbers of every quota.
///
/// Most ask for no more than whether it is allowed. So the numbers of a single sliding window that was checked by `check_now`
/// and the like are, mostly, worked out when asked for, and each time anew; whoever needs several of them asks for
/// [`tightest`](Self::tightest) once, or has them [`worked_out`](Self::worked_out). All others have theirs at once.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "a denial must be acted upon"]
pub struct Decision {
    allowed: bool,
    source: Source,
    reports: Reports,
    shadow: Option<Shadow>,
    /// Whether a reset has found something to forget.
    is_found: bool,
    /// Of a peek by quotas that the key was not counted for: how long its counts last under those that it was; 0 of others.
    lasts_ms: u64,
}

/// One quota is by far the most common case and is decided without an allocation.
#[derive(Clone)]
enum Reports {
    /// Worked out when somebody asks, from this and whether it is allowed; most want to know no more than that.
    Within(Within, bool),
    One(QuotaReport),
    /// Those of a shadow stand behind the others. Anything that is more to drop would have every decision put into
    /// memory, only to see whether there is something.
    Many(Box<[QuotaReport]>),
}

impl Reports {
    /// Those of a shadow as well.
    #[inline(always)]
    fn all(&self) -> QuotaReports<'_> {
        match self {
            Self::Within(within, is_allowed) => QuotaReports::worked(within.report(*is_allowed)),
            Self::One(report) => QuotaReports::kept(slice::from_ref(report)),
            Self::Many(all) => QuotaReports::kept(all),
        }
    }
}

/// What they say counts, not whether that was worked out yet.
impl PartialEq for Reports {
    fn eq(&self, other: &Self) -> bool {
        self.all() == other.all()
    }
}

impl Eq for Reports {}

impl fmt::Debug for Reports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.all().fmt(f)
    }
}

/// A decision that is not enforced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shadow {
    allowed: bool,
    source: Source,
    /// How many reports are not the shadow's.
    after: u8,
    /// Whether it is what the policy itself has decided, and not a candidate.
    is_own: bool,
}

impl Decision {
    /// A decision made elsewhere, by a store that computes it itself. There is a report for each quota of the policy.
    ///
    /// # Panics
    ///
    /// If there is none.
    pub fn new(is_allowed: bool, source: Source, reports: Vec<QuotaReport>) -> Self {
        assert!(!reports.is_empty(), "a policy has at least one quota");
        let reports = match *reports {
            [only] => Reports::One(only),
            _ => Reports::Many(reports.into()),
        };
        Self { allowed: is_allowed, source, reports, shadow: None, is_found: false, lasts_ms: 0 }
    }

    /// Allowed by `source`, which has counted nothing.
    pub fn unspent(policy: &Policy, source: Source) -> Self {
        Self::uncounted(policy, source, None)
    }

    /// Denied for good by `source`, which has counted nothing.
    pub fn refused(policy: &Policy, source: Source) -> Self {
        Self::uncounted(policy, source, Some(Retry::Never))
    }

    fn uncounted(policy: &Policy, source: Source, retry: Option<Retry>) -> Self {
        let is_allowed = retry.is_none();
        let report = |quota: &Quota| {
            let limit = quota.capacity();
            let remaining = if is_allowed { limit } else { 0 };
            QuotaReport {
                limit,
                used: 0,
                remaining,
                more_after_ms: 0,
                reset_after_ms: 0,
                retry,
                previous: 0,
                current: 0,
                oldest_age_ms: None,
            }
        };
        Self::new(is_allowed, source, policy.quotas().iter().map(report).collect())
    }

    #[inline(always)]
    pub(crate) fn one(allowed: bool, report: QuotaReport) -> Self {
        let reports = Reports::One(report);
        Self { allowed, source: Source::Store, reports, shadow: None, is_found: false, lasts_ms: 0 }
    }

    #[inline(always)]
    pub(crate) fn within(allowed: bool, within: Within) -> Self {
        let reports = Reports::Within(within, allowed);
        Self { allowed, source: Source::Store, reports, shadow: None, is_found: false, lasts_ms: 0 }
    }

    pub(crate) fn many(allowed: bool, reports: Vec<QuotaReport>) -> Self {
        Self::new(allowed, Source::Store, reports)
    }

    /// The same decision with its numbers worked out, for whoever is going to ask for them more than once. As it is if they are.
    #[inline(always)]
    pub fn worked_out(mut self) -> Self {
        if let Reports::Within(within, is_allowed) = &self.reports {
            self.reports = Reports::One(within.report(*is_allowed));
        }
        self
    }

    /// Whether the request may proceed.
    #[inline(always)]
    pub fn is_allowed(&self) -> bool {
        self.allowed
    }

    /// Whether a reset has found something to forget: a count, or a block. False of all other verbs.
    pub fn is_found(&self) -> bool {
        self.is_found
    }

    /// The same decision of a reset that has found something, or has not.
    pub fn found(self, is_found: bool) -> Self {
        Self { is_found, ..self }
    }

    /// For how long something of the key is counted if nothing else comes. A peek changes nothing, so counts of other quotas than
    /// those of the peek end as these have it.
    pub fn lasts_ms(&self) -> u64 {
        let by_reports = || self.quotas().iter().map(|report| report.reset_after_ms).max();
        if self.lasts_ms > 0 { self.lasts_ms } else { by_reports().unwrap_or(0) }
    }

    /// The same decision about counts that last for so long under the quotas that they were counted for.
    pub(crate) fn lasting(self, lasts_ms: u64) -> Self {
        Self { lasts_ms, ..self }
    }

    /// The numbers of a key that is blocked for `blocked_ms` more: nothing is left until then. With `is_denied`, the request
    /// is denied for as long.
    pub(crate) fn blocked(self, blocked_ms: u64, is_denied: bool) -> Self {
        if blocked_ms == 0 {
            return self;
        }
        let retry = |retry: Option<Retry>| is_denied.then_some(Retry::AfterMs(blocked_ms)).max(retry);
        let blocked = self.map_reports(|report| QuotaReport {
            remaining: 0,
            // A quota with units left has them again when the block ends.
            more_after_ms: if report.remaining > 0 {
                blocked_ms
            } else {
                report.more_after_ms.max(blocked_ms)
            },
            reset_after_ms: report.reset_after_ms.max(blocked_ms),
            retry: retry(report.retry),
            ..report
        });
        Self { allowed: blocked.allowed && !is_denied, ..blocked }
    }

    /// Who made the decision.
    pub fn source(&self) -> Source {
        self.source
    }

    /// The same decision, made by `source`.
    pub fn by(mut self, source: Source) -> Self {
        self.source = source;
        self
    }

    /// What was decided beside it and not enforced: by a policy that only looks on, or by a candidate for its quotas.
    pub fn shadow(&self) -> Option<Self> {
        let Shadow { allowed, source, after, .. } = self.shadow?;
        let Reports::Many(all) = &self.reports else { return None };
        Some(Self::new(allowed, source, all[usize::from(after)..].to_vec()))
    }

    /// This decision, with another beside it that is not enforced.
    pub fn beside(self, shadow: &Self) -> Self {
        self.with_shadow(shadow, false)
    }

    fn with_shadow(mut self, shadow: &Self, is_own: bool) -> Self {
        let own = self.quotas();
        let after = own.len() as u8;
        let all = [&*own, &*shadow.quotas()].concat();
        self.reports = Reports::Many(all.into());
        self.shadow = Some(Shadow { allowed: shadow.allowed, source: shadow.source, after, is_own });
        self
    }

    /// Allowed whatever was decided, which is kept as the shadow.
    pub fn in_shadow(self) -> Self {
        let mut enforced = self.clone().map_reports(|report| QuotaReport { retry: None, ..report });
        enforced.allowed = true;
        enforced.with_shadow(&self, true)
    }

    /// The same decision told `ms` later, if nothing has happened since: all waits are shorter by that.
    pub fn told_later(self, ms: u64) -> Self {
        self.map_reports(|report| QuotaReport {
            more_after_ms: report.more_after_ms.saturating_sub(ms),
            reset_after_ms: report.reset_after_ms.saturating_sub(ms),
            retry: report.retry.map(|retry| match retry {
                Retry::AfterMs(after_ms) => Retry::AfterMs(after_ms.saturating_sub(ms)),
                Retry::Never => Retry::Never,
            }),
            ..report
        })
    }

    /// The same decision, with `ms` more to wait before a denied request is repeated.
    pub fn retried_later(self, ms: u64) -> Self {
        self.map_reports(|report| QuotaReport {
            retry: report.retry.map(|retry| match retry {
                Retry::AfterMs(after_ms) => Retry::AfterMs(after_ms.saturating_add(ms)),
                Retry::Never => Retry::Never,
            }),
            ..report
        })
    }

    fn map_reports(mut self, change: impl Fn(QuotaReport) -> QuotaReport) -> Self {
        match &mut self.reports {
            Reports::Within(within, is_allowed) => {
                self.reports = Reports::One(change(within.report(*is_allowed)));
            }
            Reports::One(report) => *report = change(*report),
            Reports::Many(reports) => reports.iter_mut().for_each(|report| *report = change(*report)),
        }
        self
    }

    /// Every quota's numbers, in the order of the policy, which has their [names](Policy::quota_name).
    #[inline(always)]
    pub fn quotas(&self) -> QuotaReports<'_> {
        match (&self.reports, self.shadow) {
            (Reports::Many(all), Some(shadow)) => QuotaReports::kept(&all[..usize::from(shadow.after)]),
            (reports, _) => reports.all(),
        }
    }

    /// The quota with the least left: the one that a caller meets first. Of several, the one with the longest wait, and then the one
    /// that counts longest.
    #[inline]
    pub fn tightest(&self) -> QuotaReport {
        match &self.reports {
            Reports::Within(within, is_allowed) => within.report(*is_allowed),
            Reports::One(report) => *report,
            Reports::Many(_) => self.tightest_of_many(),
        }
    }

    fn tightest_of_many(&self) -> QuotaReport {
        let key = |report: &QuotaReport| {
            (report.remaining, core::cmp::Reverse(report.retry), core::cmp::Reverse(report.reset_after_ms))
        };
        let reports = self.quotas();
        reports.into_iter().min_by_key(key).unwrap_or(reports[0])
    }

    /// The limit of the tightest quota.
    pub fn limit(&self) -> u64 {
        self.tightest().limit
    }

    /// Until the tightest quota is whole again.
    pub fn reset_after_ms(&self) -> u64 {
        self.tightest().reset_after_ms
    }

    /// What can be spent now: no more than the tightest quota has left. That is something even if it was denied, where more
    /// was asked for.
    #[inline(always)]
    pub fn remaining(&self) -> u64 {
        self.tightest().remaining
    }

    /// When to come back; `None` if allowed. The longest of all violated quotas.
    #[inline(always)]
    pub fn retry(&self) -> Option<Retry> {
        if self.allowed {
            return None;
        }
        self.quotas().iter().filter_map(|report| report.retry).max()
    }

    /// The wait before this cost can be allowed; `None` if allowed, or if it [never](Self::is_never) can.
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

    /// The positions of the quotas that denied the request; none if that was a rule.
    pub fn violated(&self) -> impl Iterator<Item = usize> + '_ {
        let is_by_quotas = !self.allowed && self.source != Source::Rule;
        let reports = is_by_quotas.then(|| self.quotas().into_iter().enumerate());
        reports.into_iter().flatten().filter(|(_, report)| report.retry.is_some()).map(|(index, _)| index)
    }

    /// Whether the policy has denied it and only looks on: it is allowed, and nothing was spent.
    pub fn is_waived(&self) -> bool {
        self.shadow.is_some_and(|shadow| shadow.is_own && !shadow.allowed)
    }

    /// Whether its numbers are those of counts. A rule has none, and who is let in because a store has failed is not
    /// counted.
    pub fn is_counted(&self) -> bool {
        match self.source {
            Source::Store | Source::Cache => true,
            Source::Fallback(_) => !self.allowed || self.quotas().iter().any(|report| report.used > 0),
            Source::Rule => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn denial() -> Decision {
        let report = QuotaReport {
            limit: 10,
            used: 10,
            remaining: 0,
            more_after_ms: 100,
            reset_after_ms: 900,
            retry: Some(Retry::AfterMs(300)),
            previous: 0,
            current: 10,
            oldest_age_ms: None,
        };
        Decision::new(false, Source::Store, vec![report, QuotaReport { retry: None, ..report }])
    }

    #[test]
    fn a_shadow_denies_nobody_and_is_kept() {
        let decision = denial().in_shadow();
        assert!(decision.is_allowed());
        assert_eq!((decision.retry(), decision.violated().count()), (None, 0));
        assert_eq!(decision.shadow(), Some(denial()));
        assert_eq!(decision.remaining(), 0, "the numbers are true all the same");
        assert!(decision.is_waived() && decision.is_counted());
        let allowed = Decision::new(true, Source::Store, denial().quotas().to_vec());
        assert!(!allowed.clone().in_shadow().is_waived());
        assert!(!allowed.beside(&denial()).is_waived(), "a candidate has no say");
    }

    #[test]
    fn a_decision_told_later_ends_at_the_same_moment() {
        let later = denial().told_later(250);
        assert_eq!((later.retry_after_ms(), later.reset_after_ms()), (Some(50), 650));
        assert_eq!(later.quotas()[1].more_after_ms, 0);
        assert_eq!(denial().told_later(u64::MAX).retry_after_ms(), Some(0));
    }

    #[test]
    fn a_later_retry_moves_nothing_else() {
        let later = denial().retried_later(7);
        assert_eq!((later.retry_after_ms(), later.reset_after_ms()), (Some(307), 900));
        assert_eq!(later.violated().collect::<Vec<_>>(), [0]);
        let never = Decision::refused(&Policy::parse("p", ["1/1s"]).unwrap(), Source::Rule);
        assert!(never.retried_later(7).is_never());
    }

    #[test]
    fn who_counts_nothing_says_so() {
        let policy = Policy::parse("p", ["10/1s", "5/1m token-bucket"]).unwrap();
        let open = Decision::unspent(&policy, Source::Fallback(Reason::Timeout));
        assert!(open.is_allowed() && open.remaining() == 5 && open.quotas().len() == 2);
        assert_eq!((open.source().name(), open.source().reason()), ("fallback", Some(Reason::Timeout)));
        let denied = Decision::refused(&policy, Source::Rule);
        assert!(!denied.is_allowed() && denied.is_never() && denied.remaining() == 0);
    }
}
