//! Encoding of an operation for the functions in the database.

use slidegate_core::{Algorithm, Anchor, Verb};

use crate::store::Operation;
use crate::store::remote::MAX_COST;

// Codes of `sql/step.sql`.
pub(super) const CHECK: i64 = 1;
pub(super) const SLIDING_WINDOW: i64 = 1;

/// Operation without its key, as numbers for `sql/step.sql`.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct EncodedOperation(pub(super) Vec<i64>);

impl EncodedOperation {
    pub(super) fn new(operation: &Operation<'_>) -> Self {
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
        let mut numbers = vec![verb, cost.cast_signed(), i64::try_from(quotas.len()).unwrap_or(i64::MAX)];
        for quota in quotas {
            let (algorithm, option) = match quota.algorithm() {
                Algorithm::SlidingWindow => {
                    (SLIDING_WINDOW, i64::from(quota.anchor() == Anchor::FirstRequest))
                }
                Algorithm::StrictWindow => (2, i64::from(quota.slots())),
                Algorithm::SlidingLog => (3, 0),
                Algorithm::FixedWindow => (4, i64::from(quota.anchor() == Anchor::FirstRequest)),
                Algorithm::TokenBucket => (5, 0),
            };
            let [limit, window, capacity] =
                [quota.limit(), quota.window_ms(), quota.capacity()].map(u64::cast_signed);
            numbers.extend([algorithm, limit, window, capacity, option]);
        }
        Self(numbers)
    }
}
