//! Encoding of an operation for the functions in the database.

use slidegate_core::{Algorithm, Verb};

use crate::store::Operation;
use crate::store::remote::MAX_COST;

// Codes of `sql/step.sql`.
pub(super) const CHECK: i64 = Verb::Check.code() as i64;
pub(super) const SLIDING_WINDOW: i64 = Algorithm::SlidingWindow.code() as i64;

/// Operation without its key, as numbers for `sql/step.sql`.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct EncodedOperation(pub(super) Vec<i64>);

impl EncodedOperation {
    pub(super) fn new(operation: &Operation<'_>) -> Self {
        let quotas = operation.check.policy.quotas();
        let cost = operation.check.cost.min(MAX_COST);
        let verb = i64::from(operation.verb.code());
        let mut numbers = vec![verb, cost.cast_signed(), i64::try_from(quotas.len()).unwrap_or(i64::MAX)];
        for quota in quotas {
            let [limit, window, capacity] =
                [quota.limit(), quota.window_ms(), quota.capacity()].map(u64::cast_signed);
            let [algorithm, option] = [quota.algorithm().code(), quota.option_code()].map(i64::from);
            numbers.extend([algorithm, limit, window, capacity, option]);
        }
        Self(numbers)
    }
}
