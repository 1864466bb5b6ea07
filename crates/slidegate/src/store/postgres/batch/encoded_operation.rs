//! Encoding of an operation for the functions in the database.

use slidegate_core::{Algorithm, Verb};

use super::arguments::next_index;
use crate::store::Operation;
use crate::store::remote::MAX_COST;

// Codes of `sql/step.sql`.
pub(super) const CHECK: i64 = Verb::Check.code() as i64;
pub(super) const SLIDING_WINDOW: i64 = Algorithm::SlidingWindow.code() as i64;

/// Encodes an operation, without its key, for `sql/step.sql`.
pub(in super::super) fn encode_operation(operation: &Operation<'_>) -> Vec<i64> {
    let quotas = operation.check.policy.quotas();
    let cost = operation.check.cost.min(MAX_COST);
    let verb = i64::from(operation.verb.code());
    let mut numbers = vec![verb, cost.cast_signed(), i64::from(next_index(quotas.len())) - 1];
    for quota in quotas {
        let [limit, window, capacity] =
            [quota.limit(), quota.window_ms(), quota.capacity()].map(u64::cast_signed);
        let [algorithm, option] = [quota.algorithm().code(), quota.option_code()].map(i64::from);
        numbers.extend([algorithm, limit, window, capacity, option]);
    }
    numbers
}
