//! The report of one quota, and the reports of a decision.

use core::ops::{Deref, Range};
use core::time::Duration;
use core::{fmt, slice};

/// The earliest time at which a denied request can be allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Retry {
    /// Allowed after this many milliseconds if no other request comes, and not one millisecond earlier.
    AfterMs(u64),
    /// Denied at any time: the cost exceeds the capacity of the quota, or a rule denies the key.
    Never,
}

/// The state of one quota of the policy, after the decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct QuotaReport {
    /// Capacity of the quota: the limit, or the burst of a token bucket.
    pub limit: u64,
    /// Units counted now. Exceeds `limit` after a charge beyond it, or after the limit was lowered.
    pub used: u64,
    /// Units that can be spent now.
    pub remaining: u64,
    /// Time until more units can be spent than now, if no other request comes; 0 if nothing is counted.
    pub more_after_ms: u64,
    /// Time until nothing is counted.
    pub reset_after_ms: u64,
    /// Retry time, if this quota denied the request.
    pub retry: Option<Retry>,
    /// Units counted in the previous window of a sliding window, in full; `used` contains the part that still overlaps. 0 for
    /// all other algorithms.
    pub previous: u64,
    /// Units counted in the current window. All counted units for algorithms with a single window.
    pub current: u64,
    /// Age of the oldest live entry of a log, or of the oldest live pair of a strict window.
    pub oldest_age_ms: Option<u64>,
}

impl QuotaReport {
    /// Returns the report of a quota of this capacity that counts nothing.
    pub const fn unused(limit: u64) -> Self {
        Self {
            limit,
            used: 0,
            remaining: limit,
            more_after_ms: 0,
            reset_after_ms: 0,
            retry: None,
            previous: 0,
            current: 0,
            oldest_age_ms: None,
        }
    }

    /// Time until more units can be spent than now, if no other request comes; zero if nothing is counted.
    pub const fn more_after(&self) -> Duration {
        Duration::from_millis(self.more_after_ms)
    }

    /// Time until nothing is counted.
    pub const fn reset_after(&self) -> Duration {
        Duration::from_millis(self.reset_after_ms)
    }

    /// The wait before this quota can allow the denied request; `None` if it did not deny it or can never allow it.
    pub const fn retry_after(&self) -> Option<Duration> {
        match self.retry {
            Some(Retry::AfterMs(ms)) => Some(Duration::from_millis(ms)),
            Some(Retry::Never) | None => None,
        }
    }

    /// Returns the report with another retry time.
    #[must_use]
    pub const fn with_retry(self, retry: Option<Retry>) -> Self {
        Self { retry, ..self }
    }
}

/// The reports of all quotas, in the order of the policy.
///
/// Dereferences to a slice. The report of a [`fast_check`](crate::fast_check()) is computed on access and stored in this value,
/// so bind it to a variable before borrowing from it.
///
/// ```
/// use slidegate_core::{Decision, Policy, Source};
///
/// let decision = Decision::allowed_by(&Policy::parse("api", ["5/1s", "9/1m"])?, Source::Rule);
/// let reports = decision.quotas();
/// assert_eq!((reports.len(), reports[1].limit), (2, 9));
/// assert_eq!(reports.iter().rev().map(|report| report.limit).collect::<Vec<_>>(), [9, 5]);
/// assert_eq!(decision.quotas().into_iter().map(|report| report.remaining).sum::<u64>(), 14);
/// # Ok::<(), slidegate_core::QuotaError>(())
/// ```
#[derive(Clone, Copy)]
pub struct QuotaReports<'a>(Storage<'a>);

#[derive(Clone, Copy)]
enum Storage<'a> {
    Computed([QuotaReport; 1]),
    Stored(&'a [QuotaReport]),
}

impl<'a> QuotaReports<'a> {
    #[inline(always)]
    pub(crate) fn computed(report: QuotaReport) -> Self {
        Self(Storage::Computed([report]))
    }

    #[inline(always)]
    pub(crate) fn stored(reports: &'a [QuotaReport]) -> Self {
        Self(Storage::Stored(reports))
    }
}

impl Deref for QuotaReports<'_> {
    type Target = [QuotaReport];

    #[inline(always)]
    fn deref(&self) -> &[QuotaReport] {
        match &self.0 {
            Storage::Computed(one) => one,
            Storage::Stored(all) => all,
        }
    }
}

impl<'a> IntoIterator for QuotaReports<'a> {
    type Item = QuotaReport;
    type IntoIter = QuotaReportsIter<'a>;

    fn into_iter(self) -> Self::IntoIter {
        QuotaReportsIter { places: 0..self.len(), reports: self }
    }
}

/// Iterator over the reports of all quotas.
#[derive(Clone, Debug)]
pub struct QuotaReportsIter<'a> {
    reports: QuotaReports<'a>,
    places: Range<usize>,
}

impl Iterator for QuotaReportsIter<'_> {
    type Item = QuotaReport;

    fn next(&mut self) -> Option<QuotaReport> {
        self.places.next().map(|place| self.reports[place])
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.places.size_hint()
    }
}

impl ExactSizeIterator for QuotaReportsIter<'_> {}

impl<'a> IntoIterator for &'a QuotaReports<'_> {
    type Item = &'a QuotaReport;
    type IntoIter = slice::Iter<'a, QuotaReport>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl fmt::Debug for QuotaReports<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl PartialEq for QuotaReports<'_> {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for QuotaReports<'_> {}

impl PartialEq<[QuotaReport]> for QuotaReports<'_> {
    fn eq(&self, other: &[QuotaReport]) -> bool {
        **self == *other
    }
}

impl<const N: usize> PartialEq<[QuotaReport; N]> for QuotaReports<'_> {
    fn eq(&self, other: &[QuotaReport; N]) -> bool {
        **self == *other
    }
}
