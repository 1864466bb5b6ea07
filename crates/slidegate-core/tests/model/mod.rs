//! Oracle of one key. It shares no line with the core; its formulas are those of the semantics, and its rules for copies and for
//! the states of other versions are those of the core, which the semantics leave open.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod count;
mod traces;

use slidegate_core::{Decision, Policy, Quota, Retry, Verb};

use count::{Count, Kinship};
pub(crate) use traces::{Step, answer_like_the_oracle};

/// The most counts that are kept beside those of the policy's own quotas.
const MOST_OTHERS: usize = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pass {
    Own,
    SameWindow,
    Nearest,
}

/// Where a quota's count comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Own(usize),
    CopyOf(usize),
    None,
}

/// What one quota reports.
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
pub(crate) struct Answer {
    pub(crate) is_allowed: bool,
    pub(crate) retry: Option<Retry>,
    pub(crate) reports: Vec<Report>,
}

impl From<&Decision> for Answer {
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

/// What one key has spent under all versions of one policy.
#[derive(Clone, Debug, Default)]
pub(crate) struct Oracle {
    counts: Vec<Count>,
}

impl Oracle {
    /// Whether anything still counts.
    pub(crate) fn is_live(&self, now_ms: u64) -> bool {
        self.counts.iter().any(|count| count.used(now_ms.into()) > 0)
    }

    /// Whether more than `units` are counted for each quota, and none has to begin with a copy.
    pub(crate) fn counts_more_than(&self, units: u64, policy: &Policy, now_ms: u64) -> bool {
        let is_counting = |place: &Place| match place {
            Place::Own(at) => self.counts[*at].used(now_ms.into()) > units.into(),
            Place::CopyOf(_) | Place::None => false,
        };
        self.matched(policy.quotas(), now_ms.into()).iter().all(is_counting)
    }

    /// Decides, and keeps what has changed.
    pub(crate) fn execute(&mut self, policy: &Policy, verb: Verb, now_ms: u64, cost: u64) -> Answer {
        let (now, units) = (u128::from(now_ms), u128::from(cost));
        let quotas = policy.quotas();
        // A key of which nothing counts any more is as good as new: a store may have forgotten it.
        if verb == Verb::Reset || !self.is_live(now_ms) {
            self.counts.clear();
        }
        let places = self.matched(quotas, now);
        let (mut seen, mended): (Vec<Count>, Vec<bool>) = std::iter::zip(quotas, &places)
            .map(|(quota, place)| match place {
                Place::Own(at) | Place::CopyOf(at) => self.counts[*at].seen(quota, now),
                Place::None => (Count::empty(quota, now), false),
            })
            .unzip();
        let is_checked = matches!(verb, Verb::Check | Verb::Peek);
        let fits = |(quota, count): (&Quota, &Count)| count.used(now) + units <= quota.capacity().into();
        let is_allowed = !is_checked || std::iter::zip(quotas, &seen).all(fits);
        let is_kept = match verb {
            Verb::Check => mended.contains(&true) || is_allowed && cost > 0,
            Verb::Refund => true,
            _ => false,
        };
        for (quota, count) in std::iter::zip(quotas, &mut seen) {
            match verb {
                Verb::Check if is_allowed && cost > 0 => count.spend(quota, now, units),
                Verb::Refund => count.refund(units),
                _ => {}
            }
        }
        let refused = (!is_allowed).then_some(cost);
        let reports: Vec<_> =
            std::iter::zip(quotas, &seen).map(|(quota, count)| report(quota, count, now, refused)).collect();
        if is_kept {
            if verb == Verb::Check && !(is_allowed && cost > 0) {
                // Only what was mended is written.
                for (at, count) in seen.iter_mut().enumerate().filter(|(at, _)| !mended[*at]) {
                    *count = match places[at] {
                        Place::Own(at) | Place::CopyOf(at) => self.counts[at].clone(),
                        Place::None => Count::empty(&quotas[at], 0),
                    }
                }
            }
            let counts = std::mem::take(&mut self.counts).into_iter().enumerate();
            // A copy that goes on under its own window is no copy.
            let is_taken = |at: usize, source: &Count| {
                std::iter::zip(&places, &seen).any(|(place, count)| match place {
                    Place::Own(own) => *own == at,
                    Place::CopyOf(copied) => *copied == at && count.is_counted_like(source),
                    Place::None => false,
                })
            };
            let others: Vec<_> =
                counts.filter(|(at, count)| !is_taken(*at, count)).map(|(_, count)| count).collect();
            let all: Vec<_> = seen.iter().chain(&others).cloned().collect();
            let mut others: Vec<_> =
                others.into_iter().filter(|count| count.is_remembered(now, &all)).take(MOST_OTHERS).collect();
            if verb == Verb::Check && is_allowed && cost > 0 {
                // What is spent counts for every version of the policy that has the algorithm.
                let is_of_policy =
                    |count: &&mut Count| quotas.iter().any(|quota| count.has_algorithm_of(quota));
                others.iter_mut().filter(is_of_policy).for_each(|count| count.spend_elsewhere(now, units));
            } else if verb == Verb::Refund {
                // As does what is given back.
                let is_of_policy =
                    |count: &&mut Count| quotas.iter().any(|quota| count.has_algorithm_of(quota));
                others.iter_mut().filter(is_of_policy).for_each(|count| count.refund_elsewhere(now, units));
            }
            seen.extend(others);
            self.counts = seen;
        }
        Answer { is_allowed, retry: reports.iter().filter_map(|report| report.retry).max(), reports }
    }

    /// The places of the counts: whose own it is, or from which a quota without one begins with a copy.
    fn matched(&self, quotas: &[Quota], now: u128) -> Vec<Place> {
        let mut free: Vec<usize> = (0..self.counts.len()).collect();
        let mut places = vec![Place::None; quotas.len()];
        for pass in [Pass::Own, Pass::SameWindow, Pass::Nearest] {
            for (quota, place) in
                std::iter::zip(quotas, &mut places).filter(|(_, place)| **place == Place::None)
            {
                let is_of_pass = |at: usize| match self.counts[at].kinship(quota)? {
                    Kinship::Same => Some(0),
                    _ if pass == Pass::Own || self.counts[at].used(now) == 0 => None,
                    Kinship::SameWindow => Some(0),
                    Kinship::SameAlgorithm(difference) => (pass == Pass::Nearest).then_some(difference),
                };
                // Of equals, the first.
                let kin = free.iter().filter_map(|at| Some((is_of_pass(*at)?, *at))).min();
                if let Some((_, at)) = kin {
                    *place = if pass == Pass::Own { Place::Own(at) } else { Place::CopyOf(at) };
                    free.retain(|other| *other != at);
                }
            }
        }
        places
    }
}

fn report(quota: &Quota, count: &Count, now: u128, refused: Option<u64>) -> Report {
    let capacity = u128::from(quota.capacity());
    let used = count.used(now);
    let retry = refused.filter(|cost| used + u128::from(*cost) > capacity).map(|cost| {
        match capacity.checked_sub(cost.into()) {
            Some(most) => Retry::AfterMs(narrow(count.wait_until_at_most(most, now))),
            None => Retry::Never,
        }
    });
    // A limit of 0 never has more to spend.
    let more_after = match used.min(capacity) {
        0 => 0,
        fewer => count.wait_until_at_most(fewer - 1, now),
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
