//! Counts and block of one key, and its operations.

use slidegate_core::{Policy, Quota, Retry, Verb};

use super::count::{Count, Similarity};
use super::{Outcome, Report};

/// Longest block: 366 days.
const MAX_BLOCK_MS: u128 = 366 * 86_400_000;
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

/// Counts of one key under all versions of one policy, and its block.
#[derive(Clone, Debug, Default)]
pub(super) struct Oracle {
    counts: Vec<Count>,
    blocked_until: u128,
}

/// Counts of a policy's quotas during an operation.
struct Views {
    origins: Vec<Origin>,
    counts: Vec<Count>,
    /// Whether each count is adjusted, so that a denied check stores it.
    adjusted: Vec<bool>,
}

impl Oracle {
    /// Whether the key has a block or any count above 0.
    pub(super) fn is_live(&self, now_ms: u64) -> bool {
        self.blocked_until > now_ms.into() || self.counts.iter().any(|count| count.used(now_ms.into()) > 0)
    }

    /// Whether each quota has a count of its own, and it is above `units`.
    pub(super) fn counts_more_than(&self, units: u64, policy: &Policy, now_ms: u64) -> bool {
        let is_counting = |origin: &Origin| match origin {
            Origin::Own(index) => self.counts[*index].used(now_ms.into()) > units.into(),
            Origin::CopyOf(_) | Origin::None => false,
        };
        self.match_counts(policy.quotas(), now_ms.into()).iter().all(is_counting)
    }

    /// Remaining duration of the block.
    fn blocked(&self, now: u128) -> u128 {
        self.blocked_until.saturating_sub(now)
    }

    /// Decides and stores the changed counts.
    pub(super) fn execute(&mut self, policy: &Policy, verb: Verb, now_ms: u64, cost: u64) -> Outcome {
        let (now, units) = (u128::from(now_ms), u128::from(cost));
        let quotas = policy.quotas();
        let is_found = verb == Verb::Reset
            && (self.blocked(now) > 0 || self.counts.iter().any(|count| count.can_be_found(now)));
        if verb == Verb::Reset || !self.is_live(now_ms) {
            *self = Self::default();
        }
        let blocked = self.blocked(now);
        let mut views = self.view(quotas, now);
        let exceeds = |units: u128| {
            move |(quota, count): (&Quota, &Count)| count.used(now) + units > quota.capacity().into()
        };
        let is_checked = matches!(verb, Verb::Check | Verb::Peek);
        let fits = !is_checked || !std::iter::zip(quotas, &views.counts).any(exceeds(units));
        let is_spent = match verb {
            Verb::Check => fits && blocked == 0 && units > 0,
            Verb::Charge => units > 0,
            _ => false,
        };
        for (quota, count) in std::iter::zip(quotas, &mut views.counts) {
            match verb {
                _ if is_spent => count.spend(quota, now, units),
                Verb::Refund => count.refund(units),
                _ => {}
            }
        }
        // After a charge, another charge of 0 would have to fit.
        let is_within = verb != Verb::Charge || !std::iter::zip(quotas, &views.counts).any(exceeds(0));
        let required = match verb {
            Verb::Check | Verb::Peek if !fits => Some(cost),
            Verb::Charge => Some(0),
            _ => None,
        };
        let reports =
            std::iter::zip(quotas, &views.counts).map(|(quota, count)| report(quota, count, now, required));
        let mut reports: Vec<_> = reports.collect();
        self.store(quotas, views, verb, now, is_spent, units);
        if verb == Verb::Block {
            self.blocked_until = if units == 0 { 0 } else { now + units.min(MAX_BLOCK_MS) };
        }
        let blocked = self.blocked(now);
        let is_denied_by_block = blocked > 0 && (is_checked || verb == Verb::Charge);
        for report in &mut reports {
            report.block(narrow(blocked), is_denied_by_block);
        }
        Outcome {
            is_allowed: fits && is_within && !is_denied_by_block,
            is_found,
            retry: reports.iter().filter_map(|report| report.retry).max(),
            reports,
        }
    }

    /// Returns the counts of the quotas now.
    fn view(&self, quotas: &[Quota], now: u128) -> Views {
        let origins = self.match_counts(quotas, now);
        let (counts, adjusted) = std::iter::zip(quotas, &origins)
            .map(|(quota, origin)| match origin {
                Origin::Own(index) | Origin::CopyOf(index) => self.counts[*index].view(quota, now),
                Origin::None => (Count::empty(quota, now), false),
            })
            .unzip();
        Views { origins, counts, adjusted }
    }

    /// Stores the counts of the policy that the operation changes, followed by those of other versions.
    fn store(&mut self, quotas: &[Quota], views: Views, verb: Verb, now: u128, is_spent: bool, units: u128) {
        let Views { origins, mut counts, adjusted } = views;
        let is_complete = is_spent || matches!(verb, Verb::Refund | Verb::Block);
        let is_denied_by_block = verb == Verb::Check && self.blocked(now) > 0;
        let stores_adjusted = matches!(verb, Verb::Check | Verb::Charge) && !is_denied_by_block;
        let is_stored = is_complete || stores_adjusted && adjusted.contains(&true);
        if !is_stored {
            return;
        }
        for index in (0..counts.len()).filter(|index| !is_complete && !adjusted[*index]) {
            counts[index] = match origins[index] {
                Origin::Own(from) | Origin::CopyOf(from) => self.counts[from].clone(),
                Origin::None => Count::empty(&quotas[index], 0),
            }
        }
        // A copy with the same quota as its source replaces it.
        let is_replaced = |index: usize, source: &Count| {
            std::iter::zip(&origins, &counts).any(|(origin, count)| match origin {
                Origin::Own(own) => *own == index,
                Origin::CopyOf(copied) => *copied == index && count.has_same_quota_as(source),
                Origin::None => false,
            })
        };
        let others = std::mem::take(&mut self.counts).into_iter().enumerate();
        let others = others.filter(|(index, count)| !is_replaced(*index, count));
        let others: Vec<_> = others.map(|(_, count)| count).collect();
        for mut count in retained(&others, quotas, &counts, now) {
            if quotas.iter().any(|quota| count.has_algorithm_of(quota)) {
                match verb {
                    _ if is_spent => count.spend_in_other_version(now, units),
                    Verb::Refund => count.refund_in_other_version(now, units),
                    _ => {}
                }
            }
            counts.push(count);
        }
        self.counts = counts;
        if self.blocked(now) == 0 {
            self.blocked_until = 0;
        }
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

/// Returns the counts of other versions that are retained beside `own`, those of the policy.
fn retained(others: &[Count], quotas: &[Quota], own: &[Count], now: u128) -> Vec<Count> {
    let is_needed = |index: usize, count: &Count| {
        let rest = others.iter().enumerate().filter(|(other, _)| *other != index).map(|(_, other)| other);
        let rest = own.iter().chain(rest).filter_map(|other| count.window_of_related(other));
        let quotas = quotas.iter().filter_map(|quota| count.window_of_related_quota(quota));
        rest.chain(quotas).max().is_some_and(|longest| count.is_recent(now, longest))
    };
    let candidates = |is_counting: bool| {
        let is_candidate = move |(index, count): &(usize, &Count)| {
            !count.is_far_ahead(now)
                && (count.used(now) > 0) == is_counting
                && (is_counting || is_needed(*index, count))
        };
        others.iter().enumerate().filter(is_candidate).map(|(index, _)| index)
    };
    let mut chosen: Vec<usize> = candidates(true).chain(candidates(false)).take(MAX_OTHERS).collect();
    chosen.sort_unstable();
    chosen.into_iter().map(|index| others[index].clone()).collect()
}

/// Returns the report of a quota. `required` is the cost that has to fit.
fn report(quota: &Quota, count: &Count, now: u128, required: Option<u64>) -> Report {
    let capacity = u128::from(quota.capacity());
    let used = count.used(now);
    let retry = required.filter(|cost| used + u128::from(*cost) > capacity).map(|cost| {
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

impl Report {
    /// Applies a block: nothing remains, and no wait is shorter.
    fn block(&mut self, blocked_ms: u64, is_denied: bool) {
        if blocked_ms == 0 {
            return;
        }
        // Units that remain without the block are available when it ends.
        self.more_after_ms = if self.remaining > 0 { blocked_ms } else { self.more_after_ms.max(blocked_ms) };
        self.remaining = 0;
        self.reset_after_ms = self.reset_after_ms.max(blocked_ms);
        if is_denied {
            self.retry = self.retry.max(Some(Retry::AfterMs(blocked_ms)));
        }
    }
}

fn narrow(number: u128) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}
