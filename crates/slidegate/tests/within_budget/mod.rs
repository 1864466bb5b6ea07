//! No call takes longer than it may, whatever is at the other end.

use std::time::Duration;

use slidegate::{Limiter, Policy, Store, StoreError};

/// Whatever these are asked fails in time. By the runtime's clock, which stands still while there is anything to do and runs
/// ahead while there is not: how fast the machine is makes no difference.
#[expect(clippy::disallowed_methods, reason = "the runtime's clock, which is paused")]
pub(crate) async fn ends<S: Store>(limiters: &[Limiter<S>], budget: Duration) {
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
            // To the millisecond, which is how fine a timer is.
            let took = start.elapsed();
            assert!(took <= budget + Duration::from_millis(1), "{number}, {round}: {took:?}");
            assert!(errors.iter().all(StoreError::is_transient), "{number}, {round}: {errors:?}");
        }
    }
}
