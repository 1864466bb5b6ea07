//! Oracle of one key, which shares no code with the core.
//!
//! The formulas of the algorithms, the merges of a strict window and the walks of a log are those of the specification. So are
//! these rules about changed policies and clocks:
//!
//! - A count belongs to an algorithm and a window. The position of its quota does not matter, and the limit may change.
//! - A count survives while other versions of the policy are in use.
//! - For a changed window, a sliding or fixed window restarts now with the used units, and a log drops the entries that are older
//!   than the window. Another algorithm starts with no counts.
//! - A changed token bucket pays its debt at its former rate up to the change, and then owes at most the new capacity.
//! - A clock that steps back stands still. A time more than a window ahead is replaced by the present one; the counts remain.
//! - A denial changes no count. A refund returns no more than is counted.
//! - A charge counts in full, beyond the limit too. It is allowed if no limit is exceeded afterwards.
//! - A blocked key is denied until the block ends, at most 366 days later. Nothing remains meanwhile. The counts continue. A new
//!   block replaces the former, and a block of 0 or a reset ends it.
//!
//! The specification is silent about the rest. There the oracle assumes:
//!
//! 1. *Identity.* A token bucket also belongs to its rate and capacity.
//! 2. *Sources.* A quota without its own count starts with a copy: of a count of its algorithm with the same window, or else with
//!    the nearest window. Quotas choose in their order, all of them by the same window first. Of equally near counts, the first
//!    one is copied. A count is copied by one quota, only if no quota owns it, and only if it counts something.
//! 3. *Copies.* A copy takes the other window, rate or capacity at once, with these exceptions. A sliding or fixed window whose
//!    quota has a longer window keeps its own until units are spent. Tokens are rounded up.
//! 4. *Storage.* An allowed check and a charge, both of a cost above 0, a refund and a block store the counts of all quotas. Other
//!    checks and charges store only adjusted counts: after a far step of the clock, under a shorter window of a sliding or fixed
//!    window, under another window of a log, or of another token bucket. The counts of the other quotas are stored unadjusted. A
//!    peek and a check of a blocked key store nothing.
//! 5. *Sources of stored copies.* The source is retained beside its copy, unless both now belong to the same quota.
//! 6. *Retained counts.* The counts of other versions follow those of the policy, in their order, at most sixteen. A count is
//!    retained while it counts something. An empty count is retained beside another count or quota of its algorithm, until two
//!    of their longest windows have passed since its time; it is the first to be dropped beyond sixteen. A count with a time more
//!    than its window ahead is dropped.
//! 7. *Other versions.* Spent and refunded units count in each retained count of an algorithm of the policy, rolled under its own
//!    quota. Windows and logs count them beyond any limit. A token bucket owes at most its capacity for them, or what it owed.
//! 8. *Refunds.* Units are returned from the current window first, then from the previous one, and from the oldest entries
//!    of a log.
//! 9. *Beyond the limit.* Units move the newest entry of a sliding log to their time while the entry before is at most an eighth
//!    of the window old. A strict window of more units than its limit merges by that number in place of the limit. Pairs
//!    are merged when units are added, and by no other operation.
//! 10. *Limits of 0.* A token bucket of limit 0 pays off like one of limit 1. No wait makes units of a limit of 0 available.
//! 11. *Blocks.* All numbers of a quota are those of its count, except that nothing remains, and that no wait is shorter than
//!     the block. The next operation that stores counts drops a block that has ended, so that it does not return with a clock that
//!     steps back.
//! 12. *Empty keys.* A key without a block, and without a count above 0 under its own quota, equals a new key: a store may have
//!     dropped it. A reset has found something if there is a block, or such a count that is not more than its window ahead.
//!
//! The traces leave out what no rule defines: a clock that steps back while the key is empty, or to more than 366 days before the
//! end of a block; a clock that steps back by more than the shortest window while a policy has several versions; a refund of a
//! copy, or of all units, under one of several versions.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod count;
mod key;
mod traces;

use slidegate_core::{Decision, Retry};

pub(crate) use traces::{Step, assert_traces_match_oracle};

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
    /// Whether a reset has removed anything.
    pub(crate) is_found: bool,
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
        Self {
            is_allowed: decision.is_allowed(),
            is_found: decision.is_found(),
            retry: decision.retry(),
            reports,
        }
    }
}
