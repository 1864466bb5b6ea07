//! Time that a call takes at most.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use slidegate::resilience::{Budget, FailureRule};
use slidegate::store::{Operation, Store, StoreLimiter};
use slidegate::{Policy, StoreError, StoreStack, Verb};

use super::{eventually, policy, used};
use crate::backend::{Backend, Settings, connect_within};

const BUDGET: Duration = Duration::from_millis(200);

pub(crate) async fn a_stopped_server_costs_each_caller_at_most_the_budget<B: Backend>() {
    let server = B::start();
    let limiter = connect_within::<B>(BUDGET, &server.url()).await;
    let policy = policy("1000/1h");
    assert!(eventually(&limiter, policy.key("a")).await.is_allowed());
    server.stop();
    // Some requests in flight, some queued, some after the connection was closed.
    let mut errors = Vec::new();
    for _ in 0..3 {
        let many = [(); 10].map(|()| policy.key("a"));
        // A call without a timeout would hang the test here.
        errors.extend(limiter.check_many(&many).await.into_iter().map(Result::unwrap_err));
        errors.push(limiter.check(policy.key("a")).await.unwrap_err());
    }
    assert!(errors.iter().all(StoreError::is_transient), "{errors:?}");
    server.resume();
    assert!(eventually(&limiter, policy.key("b")).await.is_allowed());
    // Each sent request is counted at most once.
    let sent = errors.iter().filter(|error| error.may_have_counted()).count() as u64;
    let spent = used(&limiter, policy.key("a")).await;
    assert!((1..=1 + sent).contains(&spent), "{spent}, and {sent} were sent");
}

/// No call exceeds its budget. Uses the runtime's paused clock, which advances only while all tasks are idle, so the
/// result does not depend on the machine's speed.
#[expect(clippy::disallowed_methods, reason = "the runtime's clock, which is paused")]
pub(crate) async fn each_call_ends_within_its_budget<B: Backend>() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let server = B::start();
    let mut limiters = vec![connect_within::<B>(BUDGET, &server.url()).await];
    server.stop();
    for url in [server.url()].into_iter().chain(B::urls_of_topologies(silent.local_addr().unwrap())) {
        let settings = Settings { budget: BUDGET, ..Settings::default() };
        limiters.push(StoreLimiter::new(B::connect_lazily(&url, settings)));
    }
    let policy = policy("1000/1h");
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
            assert!(took <= BUDGET + Duration::from_millis(1), "{number}, {round}: {took:?}");
            assert!(errors.iter().all(StoreError::is_transient), "{number}, {round}: {errors:?}");
        }
    }
}

/// The caller's side sets one timer per call, for the shorter one of the store's budget and the policy's.
pub(crate) async fn a_call_sets_one_timer<B: Backend>() {
    let budgets = [("short", 50), ("api", 200), ("long", 1000)];
    let server = B::start();
    let rule =
        |(name, ms): (&str, u64)| (name.to_owned(), FailureRule::default().budget(Duration::from_millis(ms)));
    let stack = || async {
        let mut builder = StoreStack::builder().cache_denials(true).switches([]);
        builder = builder.retry_jitter(Duration::from_millis(5));
        for (name, rule) in budgets.map(rule) {
            builder = builder.failure_rule(&name, rule);
        }
        builder.connect(&server.url()).await.unwrap()
    };
    // A store that has timed out may reject later requests at once, so each call has a store of its own.
    let mut stacks = Vec::new();
    for (name, _) in budgets {
        for count in [1, 100] {
            stacks.push((Policy::parse(name, ["1000/1h"]).unwrap(), count, stack().await));
        }
    }
    let both_groups = stack().await;
    let alone = B::connect(&server.url(), Settings { budget: BUDGET, ..Settings::default() }).await.unwrap();
    let store = B::connect(&server.url(), Settings { budget: BUDGET, ..Settings::default() }).await.unwrap();
    let shared = Budget::new(Arc::new(store), BUDGET / 2);
    server.stop();
    tokio::time::pause();
    for (policy, count, stack) in &stacks {
        assert_eq!(timers_of(stack, &vec![check(policy); *count]).await, 1, "{} {count}", policy.name());
    }
    let [(short, ..), .., (long, ..)] = stacks.as_slice() else { unreachable!("several stacks") };
    assert_eq!(timers_of(&both_groups, &[check(short), check(long)]).await, 2, "one per failure rule");
    assert_eq!(timers_of(&alone, &[check(short)]).await, 1, "without layers");
    assert_eq!(timers_of(&shared, &[check(short)]).await, 1, "with a shorter budget");
}

fn check(policy: &Policy) -> Operation<'_> {
    Operation::new(Verb::Check, policy.key("a"))
}

/// Returns the number of timers of a call that gets no response: each wakes the call when it ends.
async fn timers_of(store: &impl Store, operations: &[Operation<'_>]) -> usize {
    struct Wakes(AtomicUsize);

    impl Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Relaxed);
        }
    }

    let wakes = Arc::new(Wakes(AtomicUsize::new(0)));
    let waker = Waker::from(Arc::clone(&wakes));
    let mut context = Context::from_waker(&waker);
    let mut call = pin!(store.execute(operations));
    assert!(call.as_mut().poll(&mut context).is_pending());
    // Ends all timers of the call. The store's tasks run only now, so their timers end later.
    tokio::time::advance(Duration::from_mins(1)).await;
    let timers = wakes.0.load(Relaxed);
    assert!(call.as_mut().poll(&mut context).is_ready(), "the call has timed out");
    timers
}
