//! The result of an action: allowed or denied, with a report for each quota.

mod derived;

use core::time::Duration;
use core::{fmt, slice};

use crate::lazy_report::LazyReport;
use crate::policy::Policy;
use crate::quota::Quota;
use crate::report::{QuotaReport, QuotaReports, Retry};
use crate::source::Source;

/// The result of an action: allowed or denied, with a report for each quota.
///
/// Most callers only need to know whether the request is allowed. The report of a [`fast_check`](crate::fast_check()) is
/// therefore computed on each access. A caller that reads several numbers calls [`tightest`](Self::tightest) once, or stores
/// the report with [`with_reports`](Self::with_reports). All other decisions store their reports from the start.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "a denial must be acted upon; `let _ =` drops the result of a refund, reset or block"]
pub struct Decision {
    allowed: bool,
    source: Source,
    reports: Reports,
    shadow: Option<Shadow>,
    /// Whether a reset has removed a count or a block.
    is_found: bool,
    /// For a peek at counts of other quotas: the time until these counts expire under their own quotas. Otherwise 0.
    former_expires_after_ms: u64,
}

/// Storage of the reports. One quota is by far the most common case and needs no allocation.
///
/// The order of the variants gives `Many` the last value of the tag. Then one comparison shows whether there is something to
/// drop, and the compiler removes it from the fast path.
#[derive(Clone)]
enum Reports {
    One(QuotaReport),
    /// Computed on each access, from these inputs.
    Lazy(LazyReport),
    /// Includes the reports of a shadow, behind the enforced ones. A second field that needs a destructor would force the
    /// compiler to write every decision to memory, only to test whether there is something to drop.
    Many(Box<[QuotaReport]>),
}

/// A report read from memory. A separate type makes the compiler assemble a computed report in registers, instead of copying
/// both kinds through the same memory.
struct StoredReport(QuotaReport);

impl Reports {
    /// Returns all reports, including those of a shadow.
    #[inline(always)]
    fn all(&self) -> QuotaReports<'_> {
        match self {
            Self::Lazy(lazy) => QuotaReports::computed(lazy.report()),
            Self::One(report) => QuotaReports::stored(slice::from_ref(report)),
            Self::Many(all) => QuotaReports::stored(all),
        }
    }
}

/// Compares the reports, whether they are stored or computed.
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
    /// Number of enforced reports; the reports of the shadow follow.
    enforced_reports: u8,
    /// Whether the policy itself made this decision, as opposed to a candidate.
    is_own: bool,
}

impl Decision {
    /// Returns a decision of a store that computes it itself, with one report for each quota of the policy.
    ///
    /// # Panics
    ///
    /// Panics if `reports` is empty.
    pub fn new(is_allowed: bool, source: Source, reports: Vec<QuotaReport>) -> Self {
        assert!(!reports.is_empty(), "a policy has at least one quota");
        let reports = match *reports {
            [only] => Reports::One(only),
            _ => Reports::Many(reports.into()),
        };
        Self {
            allowed: is_allowed,
            source,
            reports,
            shadow: None,
            is_found: false,
            former_expires_after_ms: 0,
        }
    }

    /// Returns a decision of a source that counts nothing: allowed.
    pub fn allowed_by(policy: &Policy, source: Source) -> Self {
        Self::uncounted(policy, source, None)
    }

    /// Returns a decision of a source that counts nothing: denied, without a retry time.
    pub fn denied_by(policy: &Policy, source: Source) -> Self {
        Self::uncounted(policy, source, Some(Retry::Never))
    }

    fn uncounted(policy: &Policy, source: Source, retry: Option<Retry>) -> Self {
        let is_allowed = retry.is_none();
        let report = |quota: &Quota| {
            let unused = QuotaReport::unused(quota.capacity());
            if is_allowed { unused } else { QuotaReport { remaining: 0, retry, ..unused } }
        };
        Self::new(is_allowed, source, policy.quotas().iter().map(report).collect())
    }

    #[inline(always)]
    pub(crate) fn one(allowed: bool, report: QuotaReport) -> Self {
        let reports = Reports::One(report);
        Self {
            allowed,
            source: Source::Store,
            reports,
            shadow: None,
            is_found: false,
            former_expires_after_ms: 0,
        }
    }

    #[inline(always)]
    pub(crate) fn lazy(allowed: bool, lazy: LazyReport) -> Self {
        let reports = Reports::Lazy(lazy);
        Self {
            allowed,
            source: Source::Store,
            reports,
            shadow: None,
            is_found: false,
            former_expires_after_ms: 0,
        }
    }

    pub(crate) fn many(allowed: bool, reports: Vec<QuotaReport>) -> Self {
        Self::new(allowed, Source::Store, reports)
    }

    /// Whether the request may proceed.
    #[inline(always)]
    pub fn is_allowed(&self) -> bool {
        self.allowed
    }

    /// Whether a reset has removed a count or a block. False for all other verbs.
    pub fn is_found(&self) -> bool {
        self.is_found
    }

    /// Time until the key has no count and no block, if no other request comes. A peek changes nothing, so counts of other
    /// quotas expire at their own times.
    pub fn expires_after(&self) -> Duration {
        Duration::from_millis(self.expires_after_ms())
    }

    /// [`expires_after`](Self::expires_after) in milliseconds.
    pub fn expires_after_ms(&self) -> u64 {
        let by_reports = || self.quotas().iter().map(|report| report.reset_after_ms).max();
        if self.former_expires_after_ms > 0 {
            self.former_expires_after_ms
        } else {
            by_reports().unwrap_or(0)
        }
    }

    /// Origin of the decision.
    pub fn source(&self) -> Source {
        self.source
    }

    /// Returns the reports of the quotas, in the order of the policy, which has their [names](Policy::quota_name).
    #[inline(always)]
    pub fn quotas(&self) -> QuotaReports<'_> {
        match (&self.reports, self.shadow) {
            (Reports::Many(all), Some(shadow)) => {
                QuotaReports::stored(&all[..usize::from(shadow.enforced_reports)])
            }
            (reports, _) => reports.all(),
        }
    }

    /// Returns the report of the tightest quota: the one with the fewest units remaining, then with the longest wait, then with
    /// the longest time until its reset.
    #[inline]
    pub fn tightest(&self) -> QuotaReport {
        match &self.reports {
            Reports::Lazy(lazy) => lazy.report(),
            Reports::One(_) | Reports::Many(_) => self.tightest_stored().0,
        }
    }

    #[inline(never)]
    fn tightest_stored(&self) -> StoredReport {
        let key = |report: &QuotaReport| {
            (report.remaining, core::cmp::Reverse(report.retry), core::cmp::Reverse(report.reset_after_ms))
        };
        let reports = self.quotas();
        StoredReport(reports.into_iter().min_by_key(key).unwrap_or(reports[0]))
    }

    /// Limit of the tightest quota.
    pub fn limit(&self) -> u64 {
        self.tightest().limit
    }

    /// Time until the tightest quota counts nothing.
    pub fn reset_after(&self) -> Duration {
        Duration::from_millis(self.reset_after_ms())
    }

    /// Time until the tightest quota counts nothing, in milliseconds.
    pub fn reset_after_ms(&self) -> u64 {
        self.tightest().reset_after_ms
    }

    /// Units that can be spent now, under the tightest quota. A denied request may leave some, if it costs more than that.
    #[inline(always)]
    pub fn remaining(&self) -> u64 {
        self.tightest().remaining
    }

    /// The longest retry of all violated quotas; `None` if allowed.
    #[inline(always)]
    pub fn retry(&self) -> Option<Retry> {
        if self.allowed {
            return None;
        }
        self.quotas().iter().filter_map(|report| report.retry).max()
    }

    /// The wait before this cost can be allowed; `None` if the request is allowed or can [never](Self::is_never) be.
    #[inline(always)]
    pub fn retry_after(&self) -> Option<Duration> {
        self.retry_after_ms().map(Duration::from_millis)
    }

    /// The wait before this cost can be allowed, in milliseconds.
    #[inline(always)]
    pub fn retry_after_ms(&self) -> Option<u64> {
        match self.retry() {
            Some(Retry::AfterMs(ms)) => Some(ms),
            Some(Retry::Never) | None => None,
        }
    }

    /// Whether no wait helps: the cost exceeds the capacity of a quota, or a rule denies the key.
    pub fn is_never(&self) -> bool {
        self.retry() == Some(Retry::Never)
    }

    /// Returns the positions of the quotas that denied the request. Empty if a rule denied it.
    ///
    /// ```
    /// use slidegate_core::{Action, Policy, Verb, decide};
    ///
    /// let policy = Policy::parse("api", ["1/1s", "100/1h"])?;
    /// let mut states = Vec::new();
    /// let _ = decide(&mut states, &policy, Action::new(Verb::Check, 0, 1));
    /// let denied = decide(&mut states, &policy, Action::new(Verb::Check, 0, 1)).0;
    /// let names: Vec<&str> = denied.violated().map(|position| policy.quota_name(position)).collect();
    /// assert_eq!(names, ["1/1s"]);
    /// # Ok::<(), slidegate_core::QuotaError>(())
    /// ```
    pub fn violated(&self) -> impl Iterator<Item = usize> + '_ {
        let is_by_quotas = !self.allowed && self.source != Source::Rule;
        let reports = is_by_quotas.then(|| self.quotas().into_iter().enumerate());
        reports.into_iter().flatten().filter(|(_, report)| report.retry.is_some()).map(|(index, _)| index)
    }

    /// Whether the policy denies the request in shadow mode: the request is allowed, and nothing was spent.
    pub fn is_denied_in_shadow(&self) -> bool {
        self.shadow.is_some_and(|shadow| shadow.is_own && !shadow.allowed)
    }

    /// Whether the reports come from counts. A rule counts nothing, nor does a fallback that allows every request.
    pub fn is_counted(&self) -> bool {
        match self.source {
            Source::Store | Source::Cache => true,
            Source::Fallback(_) => !self.allowed || self.quotas().iter().any(|report| report.used > 0),
            Source::Rule => false,
        }
    }
}
