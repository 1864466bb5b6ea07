//! Encoding of an operation for the functions in the database.

use slidegate_core::{Algorithm, Anchor, Verb};

use super::arguments::next_index;
use crate::store::Operation;
use crate::store::remote::MAX_COST;

// Codes of `sql/step.sql`.
pub(super) const CHECK: i64 = 1;
pub(super) const SLIDING_WINDOW: i64 = 1;

/// Encodes an operation, without its key, for `sql/step.sql`.
pub(in super::super) fn encode_operation(operation: &Operation<'_>) -> Vec<i64> {
    let quotas = operation.check.policy.quotas();
    let verb = match operation.verb {
        Verb::Check => CHECK,
        Verb::Peek => 2,
        Verb::Refund => 3,
        Verb::Reset => 4,
        Verb::Charge => 5,
        Verb::Block => 6,
    };
    let cost = operation.check.cost.min(MAX_COST);
    let mut numbers = vec![verb, cost.cast_signed(), i64::from(next_index(quotas.len())) - 1];
    for quota in quotas {
        let (algorithm, option) = match quota.algorithm() {
            Algorithm::SlidingWindow => (SLIDING_WINDOW, i64::from(quota.anchor() == Anchor::FirstRequest)),
            Algorithm::StrictWindow => (2, i64::from(quota.slots())),
            Algorithm::SlidingLog => (3, 0),
            Algorithm::FixedWindow => (4, i64::from(quota.anchor() == Anchor::FirstRequest)),
            Algorithm::TokenBucket => (5, 0),
        };
        let [limit, window, capacity] =
            [quota.limit(), quota.window_ms(), quota.capacity()].map(u64::cast_signed);
        numbers.extend([algorithm, limit, window, capacity, option]);
    }
    numbers
}
