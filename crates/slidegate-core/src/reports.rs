//! The numbers of a decision, whether it keeps them or works them out.

use core::ops::{Deref, Range};
use core::{fmt, slice};

use crate::decision::QuotaReport;

/// The numbers of every quota, in the order of the policy: a slice of them, or the only one, worked out just now, so that it may
/// have to be kept while its parts are in use.
///
/// ```
/// use slidegate_core::{Decision, Policy, Source};
///
/// let decision = Decision::unspent(&Policy::parse("api", ["5/1s", "9/1m"])?, Source::Rule);
/// let reports = decision.quotas();
/// assert_eq!((reports.len(), reports[1].limit), (2, 9));
/// assert_eq!(reports.iter().rev().map(|report| report.limit).collect::<Vec<_>>(), [9, 5]);
/// assert_eq!(decision.quotas().into_iter().map(|report| report.remaining).sum::<u64>(), 14);
/// # Ok::<(), slidegate_core::QuotaError>(())
/// ```
#[derive(Clone, Copy)]
pub struct QuotaReports<'a>(Numbers<'a>);

#[derive(Clone, Copy)]
enum Numbers<'a> {
    Worked([QuotaReport; 1]),
    Kept(&'a [QuotaReport]),
}

impl<'a> QuotaReports<'a> {
    /// One that was worked out just now.
    #[inline(always)]
    pub(crate) fn worked(report: QuotaReport) -> Self {
        Self(Numbers::Worked([report]))
    }

    /// Those that a decision keeps.
    #[inline(always)]
    pub(crate) fn kept(reports: &'a [QuotaReport]) -> Self {
        Self(Numbers::Kept(reports))
    }
}

impl Deref for QuotaReports<'_> {
    type Target = [QuotaReport];

    #[inline(always)]
    fn deref(&self) -> &[QuotaReport] {
        match &self.0 {
            Numbers::Worked(one) => one,
            Numbers::Kept(all) => all,
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

/// Goes through the numbers of every quota.
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
