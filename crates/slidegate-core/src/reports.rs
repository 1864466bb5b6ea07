//! The numbers of a decision, whether it keeps them or works them out.

use core::ops::Deref;
use core::{fmt, iter, option, slice};

use crate::decision::QuotaReport;

/// The numbers of every quota, in the order of the policy: a slice of them.
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
    type IntoIter = iter::Chain<option::IntoIter<QuotaReport>, iter::Copied<slice::Iter<'a, QuotaReport>>>;

    fn into_iter(self) -> Self::IntoIter {
        let (one, all) = match self.0 {
            Numbers::Worked([one]) => (Some(one), [].as_slice()),
            Numbers::Kept(all) => (None, all),
        };
        one.into_iter().chain(all.iter().copied())
    }
}

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

impl<Other: AsRef<[QuotaReport]>> PartialEq<Other> for QuotaReports<'_> {
    fn eq(&self, other: &Other) -> bool {
        **self == *other.as_ref()
    }
}

impl AsRef<[QuotaReport]> for QuotaReports<'_> {
    fn as_ref(&self) -> &[QuotaReport] {
        self
    }
}
