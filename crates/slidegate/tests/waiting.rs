//! `wait`, on a clock that the test drives.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::sync::Arc;
use std::time::Duration;

use slidegate::store::{MemoryStore, StoreLimiter};
use slidegate::{Clock, ManualClock, Policy, PreciseClock, SystemClock};

const NOW: u64 = 1_800_000_000_000;

fn limiter() -> (Arc<StoreLimiter<MemoryStore<ManualClock>>>, ManualClock, Arc<Policy>) {
    let clock = ManualClock::at(NOW);
    let store = MemoryStore::builder().max_keys(100).clock(clock.clone()).build().unwrap();
    (Arc::new(StoreLimiter::new(store)), clock, Arc::new(Policy::parse("api", ["2/1s sliding-log"]).unwrap()))
}

/// Runs all other tasks until none can make progress.
async fn settle() {
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn waits_exactly_until_the_check_is_allowed() {
    let (limiter, clock, policy) = limiter();
    assert!(limiter.wait(policy.key("a").cost(2), Duration::ZERO).await.unwrap().is_allowed());
    let waiting = {
        let (limiter, policy) = (limiter.clone(), policy.clone());
        tokio::spawn(async move { limiter.wait(policy.key("a"), Duration::from_secs(1)).await.unwrap() })
    };
    settle().await;
    clock.advance(999);
    settle().await;
    assert!(!waiting.is_finished(), "one millisecond too early");
    clock.advance(1);
    let decision = waiting.await.unwrap();
    assert!(decision.is_allowed());
    assert_eq!(decision.remaining(), 1);
}

#[tokio::test]
async fn returns_a_denial_beyond_the_maximum_wait_at_once() {
    let (limiter, clock, policy) = limiter();
    assert!(limiter.check(policy.key("a").cost(2)).await.unwrap().is_allowed());
    let denied = limiter.wait(policy.key("a"), Duration::from_millis(999)).await.unwrap();
    assert_eq!((denied.is_allowed(), denied.retry_after_ms()), (false, Some(1000)));
    let never = limiter.wait(policy.key("a").cost(3), Duration::from_secs(999)).await.unwrap();
    assert!(never.is_never());
    assert_eq!((clock.now_ms(), clock.sleepers()), (NOW, 0));
}

#[tokio::test]
async fn waits_again_when_another_caller_was_faster() {
    let (limiter, clock, policy) = limiter();
    assert!(limiter.check(policy.key("a").cost(2)).await.unwrap().is_allowed());
    let waiting = {
        let (limiter, policy) = (limiter.clone(), policy.clone());
        tokio::spawn(async move { limiter.wait(policy.key("a"), Duration::from_millis(1500)).await.unwrap() })
    };
    settle().await;
    assert_eq!(clock.sleepers(), 1);
    // The other caller spends before the sleeper is polled.
    clock.advance(1000);
    assert!(limiter.check_now(policy.key("a").cost(2)).unwrap().is_allowed());
    let decision = waiting.await.unwrap();
    assert!(!decision.is_allowed(), "another second exceeds the remaining wait");
    assert_eq!(decision.retry_after_ms(), Some(1000));
}

#[tokio::test]
async fn a_cancelled_waiter_spends_nothing() {
    let (limiter, clock, policy) = limiter();
    assert!(limiter.check(policy.key("a").cost(2)).await.unwrap().is_allowed());
    let waiting = {
        let (limiter, policy) = (limiter.clone(), policy.clone());
        tokio::spawn(async move { limiter.wait(policy.key("a"), Duration::from_secs(5)).await.unwrap() })
    };
    settle().await;
    waiting.abort();
    assert!(waiting.await.unwrap_err().is_cancelled());
    clock.advance(1000);
    assert_eq!(limiter.peek(policy.key("a")).await.unwrap().remaining(), 2);
}

/// Measures no time: a sleep ends when the clock reaches the end, and never before.
#[tokio::test]
async fn real_clocks_sleep_until_they_reach_the_end() {
    let (coarse, precise) = (SystemClock::default(), PreciseClock::default());
    assert!(coarse.now_ms().abs_diff(precise.now_ms()) < 60_000, "both are the time of day");
    let end = coarse.now_ms() + 20;
    coarse.sleep(20).await;
    assert!(coarse.now_ms() >= end);
    let end = precise.now_ms() + 20;
    precise.sleep(20).await;
    assert!(precise.now_ms() >= end);
}
