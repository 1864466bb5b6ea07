//! Decisions derived from another decision: in shadow mode, beside a candidate, during a block, or at a later time.

use crate::report::{QuotaReport, Retry};
use crate::source::Source;

use super::{Decision, Reports, Shadow};

impl Decision {
    /// Computes the report of a fast check once and stores it, for a caller that reads it more than once.
    #[inline(always)]
    pub fn with_reports(mut self) -> Self {
        if let Reports::Lazy(lazy) = &self.reports {
            self.reports = Reports::One(lazy.report());
        }
        self
    }

    /// Returns the decision with another source.
    pub fn with_source(mut self, source: Source) -> Self {
        self.source = source;
        self
    }

    /// Sets whether a reset has removed a count or a block.
    pub fn with_found(self, is_found: bool) -> Self {
        Self { is_found, ..self }
    }

    /// Sets the time until counts of other quotas expire under their own quotas.
    pub(crate) fn with_former_expiry(self, former_expires_after_ms: u64) -> Self {
        Self { former_expires_after_ms, ..self }
    }

    /// Returns the decision for a key that is blocked for `blocked_ms` more: no units remain until then. With `is_denied`, the
    /// request is denied until the block ends.
    pub(crate) fn with_block(self, blocked_ms: u64, is_denied: bool) -> Self {
        if blocked_ms == 0 {
            return self;
        }
        let retry = |retry: Option<Retry>| is_denied.then_some(Retry::AfterMs(blocked_ms)).max(retry);
        let blocked = self.map_reports(|report| QuotaReport {
            remaining: 0,
            // Units that remain under the quota become available again when the block ends.
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

    /// Returns the decision as of `ms` later, if no other request came in between: all waits are shorter by `ms`.
    pub fn aged_by_ms(self, ms: u64) -> Self {
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

    /// Adds `ms` to every retry time and leaves all other numbers as they are.
    pub fn with_retry_delay_ms(self, ms: u64) -> Self {
        self.map_reports(|report| QuotaReport {
            retry: report.retry.map(|retry| match retry {
                Retry::AfterMs(after_ms) => Retry::AfterMs(after_ms.saturating_add(ms)),
                Retry::Never => Retry::Never,
            }),
            ..report
        })
    }

    /// The decision that is not enforced: by the policy in shadow mode, or by a candidate for its quotas.
    pub fn shadow(&self) -> Option<Self> {
        let Shadow { allowed, source, enforced_reports, .. } = self.shadow?;
        let Reports::Many(all) = &self.reports else { return None };
        Some(Self::new(allowed, source, all[usize::from(enforced_reports)..].to_vec()))
    }

    /// Attaches the decision of a candidate, which is not enforced.
    pub fn with_candidate(self, candidate: &Self) -> Self {
        self.with_shadow(candidate, false)
    }

    /// Allows the request, and attaches the original decision as the shadow.
    pub fn in_shadow(self) -> Self {
        let mut enforced = self.clone().map_reports(|report| report.with_retry(None));
        enforced.allowed = true;
        enforced.with_shadow(&self, true)
    }

    fn with_shadow(mut self, shadow: &Self, is_own: bool) -> Self {
        let enforced = self.quotas();
        let enforced_reports = enforced.len() as u8;
        let all = [&*enforced, &*shadow.quotas()].concat();
        self.reports = Reports::Many(all.into());
        self.shadow =
            Some(Shadow { allowed: shadow.allowed, source: shadow.source, enforced_reports, is_own });
        self
    }

    fn map_reports(mut self, change: impl Fn(QuotaReport) -> QuotaReport) -> Self {
        match &mut self.reports {
            Reports::Lazy(lazy) => self.reports = Reports::One(change(lazy.report())),
            Reports::One(report) => *report = change(*report),
            Reports::Many(reports) => reports.iter_mut().for_each(|report| *report = change(*report)),
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Policy;
    use crate::source::FallbackReason;

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
    fn a_denial_in_shadow_mode_is_allowed_and_attached() {
        let decision = denial().in_shadow();
        assert!(decision.is_allowed());
        assert_eq!((decision.retry(), decision.violated().count()), (None, 0));
        assert_eq!(decision.shadow(), Some(denial()));
        assert_eq!(decision.remaining(), 0, "the reports keep the numbers of the denial");
        assert!(decision.is_denied_in_shadow() && decision.is_counted());
        let allowed = Decision::new(true, Source::Store, denial().quotas().to_vec());
        assert!(!allowed.clone().in_shadow().is_denied_in_shadow());
        assert!(!allowed.with_candidate(&denial()).is_denied_in_shadow(), "a candidate is not the policy");
    }

    #[test]
    fn an_aged_decision_ends_at_the_same_moment() {
        let later = denial().aged_by_ms(250);
        assert_eq!((later.retry_after_ms(), later.reset_after_ms()), (Some(50), 650));
        assert_eq!(later.quotas()[1].more_after_ms, 0);
        assert_eq!(denial().aged_by_ms(u64::MAX).retry_after_ms(), Some(0));
    }

    #[test]
    fn a_retry_delay_changes_only_the_retry_time() {
        let later = denial().with_retry_delay_ms(7);
        assert_eq!((later.retry_after_ms(), later.reset_after_ms()), (Some(307), 900));
        assert_eq!(later.violated().collect::<Vec<_>>(), [0]);
        let never = Decision::denied_by(&Policy::parse("p", ["1/1s"]).unwrap(), Source::Rule);
        assert!(never.with_retry_delay_ms(7).is_never());
    }

    #[test]
    fn a_source_without_counts_reports_full_or_empty_quotas() {
        let policy = Policy::parse("p", ["10/1s", "5/1m token-bucket"]).unwrap();
        let open = Decision::allowed_by(&policy, Source::Fallback(FallbackReason::Timeout));
        assert!(open.is_allowed() && open.remaining() == 5 && open.quotas().len() == 2);
        assert_eq!(
            (open.source().name(), open.source().reason()),
            ("fallback", Some(FallbackReason::Timeout))
        );
        let denied = Decision::denied_by(&policy, Source::Rule);
        assert!(!denied.is_allowed() && denied.is_never() && denied.remaining() == 0);
    }
}
