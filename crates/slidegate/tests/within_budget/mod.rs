//! Asserts that no call exceeds its budget, for any behaviour of the server.

use std::time::Duration;

use slidegate::store::{Store, StoreLimiter};
use slidegate::{Policy, StoreError};

/// Asserts that each call fails within the budget. Uses the runtime's paused clock, which advances only while all tasks
/// are idle, so the result does not depend on the machine's speed.
#[expect(clippy::disallowed_methods, reason = "the runtime's clock, which is paused")]
pub(crate) async fn assert_fails_within<S: Store>(limiters: &[StoreLimiter<S>], budget: Duration) {
    let policy = Policy::parse("api", ["1000/1h"]).unwrap();
    let check = policy.key("a");
    tokio::time::pause();
    for (number, limiter) in limiters.iter().enumerate() {
        for round in 0..3 {
            let start = tokio::time::Instant::now();
            let errors = match round {
                0 => vec![limiter.check(check).await.map(drop).unwrap_err()],
                1 => limiter.check_many(&[check; 100]).await.into_iter().map(Result::unwrap_err).collect(),
                _ => vec![limiter.refund(check).await.map(drop).unwrap_err()],
            };
            // Timers have a resolution of 1 ms.
            let took = start.elapsed();
            assert!(took <= budget + Duration::from_millis(1), "{number}, {round}: {took:?}");
            assert!(errors.iter().all(StoreError::is_transient), "{number}, {round}: {errors:?}");
        }
    }
}
