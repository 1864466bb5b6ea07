//! Oracle of one key, which shares no code with the core. Its formulas come from the specification of the algorithms. The
//! specification does not define copies and states of other versions; for these the oracle follows the rules of the core.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod count;
mod traces;

use slidegate_core::{Decision, Policy, Quota, Retry, Verb};

use count::{Count, Similarity};
pub(crate) use traces::{Step, assert_traces_match_oracle};

/// Maximum number of retained counts of other versions of the policy.
const MAX_OTHERS: usize = 16;

/// Passes that match counts to quotas, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pass {
    Own,
    SameWindow,
    Nearest,
}

/// Source of a quota's count; the number is an index of the oracle's counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin {
    Own(usize),
    CopyOf(usize),
    None,
}

/// Report of one quota.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Report {
    pub(crate) limit: u64,
    pub(crate) used: u64,
    pub(crate) remaining: u64,
    pub(crate) more_after_ms: u64,
    pub(crate) reset_after_ms: u64,
    pub(crate) retry: Option<Retry>,
}

/// A decision without its source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub(crate) is_allowed: bool,
    pub(crate) retry: Option<Retry>,
    pub(crate) reports: Vec<Report>,
}

impl From<&Decision> for Outcome {
    fn from(decision: &Decision) -> Self {
        let reports = decision.quotas().into_iter().map(|report| Report {
            limit: report.limit,
            used: report.used,
            remaining: report.remaining,
            more_after_ms: report.more_after_ms,
            reset_after_ms: report.reset_after_ms,
            retry: report.retry,
        });
        let reports = reports.collect();
        Self { is_allowed: decision.is_allowed(), retry: decision.retry(), reports }
    }
}

/// Counts of one key under all versions of one policy.
#[derive(Clone, Debug, Default)]
pub(crate) struct Oracle {
    counts: Vec<Count>,
}

impl Oracle {
    /// Whether any count is above 0.
    pub(crate) fn is_live(&self, now_ms: u64) -> bool {
        self.counts.iter().any(|count| count.used(now_ms.into()) > 0)
    }

    /// Whether each quota has a count of its own, and it is above `units`.
    pub(crate) fn counts_more_than(&self, units: u64, policy: &Policy, now_ms: u64) -> bool {
        let is_counting = |origin: &Origin| match origin {
            Origin::Own(index) => self.counts[*index].used(now_ms.into()) > units.into(),
            Origin::CopyOf(_) | Origin::None => false,
        };
        self.match_counts(policy.quotas(), now_ms.into()).iter().all(is_counting)
    }

    /// Decides and stores the changed counts.
    pub(crate) fn execute(&mut self, policy: &Policy, verb: Verb, now_ms: u64, cost: u64) -> Outcome {
        let (now, units) = (u128::from(now_ms), u128::from(cost));
        let quotas = policy.quotas();
        // A store may have dropped a key without live counts.
        if verb == Verb::Reset || !self.is_live(now_ms) {
            self.counts.clear();
        }
        let origins = self.match_counts(quotas, now);
        let (mut views, adjusted): (Vec<Count>, Vec<bool>) = std::iter::zip(quotas, &origins)
            .map(|(quota, origin)| match origin {
                Origin::Own(index) | Origin::CopyOf(index) => self.counts[*index].view(quota, now),
                Origin::None => (Count::empty(quota, now), false),
            })
            .unzip();
        let is_checked = matches!(verb, Verb::Check | Verb::Peek);
        let fits = |(quota, count): (&Quota, &Count)| count.used(now) + units <= quota.capacity().into();
        let is_allowed = !is_checked || std::iter::zip(quotas, &views).all(fits);
        let is_stored = match verb {
            Verb::Check => adjusted.contains(&true) || is_allowed && cost > 0,
            Verb::Refund => true,
            _ => false,
        };
        for (quota, count) in std::iter::zip(quotas, &mut views) {
            match verb {
                Verb::Check if is_allowed && cost > 0 => count.spend(quota, now, units),
                Verb::Refund => count.refund(units),
                _ => {}
            }
        }
        let denied_cost = (!is_allowed).then_some(cost);
        let reports: Vec<_> = std::iter::zip(quotas, &views)
            .map(|(quota, count)| report(quota, count, now, denied_cost))
            .collect();
        if is_stored {
            if verb == Verb::Check && !(is_allowed && cost > 0) {
                // Stores adjusted counts only.
                for (index, count) in views.iter_mut().enumerate().filter(|(index, _)| !adjusted[*index]) {
                    *count = match origins[index] {
                        Origin::Own(index) | Origin::CopyOf(index) => self.counts[index].clone(),
                        Origin::None => Count::empty(&quotas[index], 0),
                    }
                }
            }
            let counts = std::mem::take(&mut self.counts).into_iter().enumerate();
            // A copy with the same quota as its source replaces it.
            let is_replaced = |index: usize, source: &Count| {
                std::iter::zip(&origins, &views).any(|(origin, count)| match origin {
                    Origin::Own(own) => *own == index,
                    Origin::CopyOf(copied) => *copied == index && count.has_same_quota_as(source),
                    Origin::None => false,
                })
            };
            let others: Vec<_> =
                counts.filter(|(index, count)| !is_replaced(*index, count)).map(|(_, count)| count).collect();
            let all: Vec<_> = views.iter().chain(&others).cloned().collect();
            let mut others: Vec<_> =
                others.into_iter().filter(|count| count.is_retained(now, &all)).take(MAX_OTHERS).collect();
            if verb == Verb::Check && is_allowed && cost > 0 {
                // Spent units count in every count of the policy's algorithms.
                let is_of_policy =
                    |count: &&mut Count| quotas.iter().any(|quota| count.has_algorithm_of(quota));
                others
                    .iter_mut()
                    .filter(is_of_policy)
                    .for_each(|count| count.spend_in_other_version(now, units));
            } else if verb == Verb::Refund {
                // Refunded units do likewise.
                let is_of_policy =
                    |count: &&mut Count| quotas.iter().any(|quota| count.has_algorithm_of(quota));
                others
                    .iter_mut()
                    .filter(is_of_policy)
                    .for_each(|count| count.refund_in_other_version(now, units));
            }
            views.extend(others);
            self.counts = views;
        }
        Outcome { is_allowed, retry: reports.iter().filter_map(|report| report.retry).max(), reports }
    }

    /// Matches the counts to the quotas: to each its own, otherwise the most similar one as the source of a copy.
    fn match_counts(&self, quotas: &[Quota], now: u128) -> Vec<Origin> {
        let mut free: Vec<usize> = (0..self.counts.len()).collect();
        let mut origins = vec![Origin::None; quotas.len()];
        for pass in [Pass::Own, Pass::SameWindow, Pass::Nearest] {
            for (quota, origin) in
                std::iter::zip(quotas, &mut origins).filter(|(_, origin)| **origin == Origin::None)
            {
                let is_of_pass = |index: usize| match self.counts[index].similarity(quota)? {
                    Similarity::Same => Some(0),
                    _ if pass == Pass::Own || self.counts[index].used(now) == 0 => None,
                    Similarity::SameWindow => Some(0),
                    Similarity::SameAlgorithm(difference) => (pass == Pass::Nearest).then_some(difference),
                };
                // The first of equally similar ones.
                let candidate = free.iter().filter_map(|index| Some((is_of_pass(*index)?, *index))).min();
                if let Some((_, index)) = candidate {
                    *origin = if pass == Pass::Own { Origin::Own(index) } else { Origin::CopyOf(index) };
                    free.retain(|other| *other != index);
                }
            }
        }
        origins
    }
}

fn report(quota: &Quota, count: &Count, now: u128, denied_cost: Option<u64>) -> Report {
    let capacity = u128::from(quota.capacity());
    let used = count.used(now);
    let retry = denied_cost.filter(|cost| used + u128::from(*cost) > capacity).map(|cost| {
        match capacity.checked_sub(cost.into()) {
            Some(max_used) => Retry::AfterMs(narrow(count.wait_until_at_most(max_used, now))),
            None => Retry::Never,
        }
    });
    // A limit of 0 never has more to spend.
    let more_after = match used.min(capacity) {
        0 => 0,
        used => count.wait_until_at_most(used - 1, now),
    };
    Report {
        limit: quota.capacity(),
        used: narrow(used),
        remaining: narrow(capacity.saturating_sub(used)),
        more_after_ms: narrow(more_after),
        reset_after_ms: narrow(count.wait_until_at_most(0, now)),
        retry,
    }
}

fn narrow(number: u128) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}
