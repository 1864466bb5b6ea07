//! Layers over a store forward every property of the store that they do not change.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use slidegate::resilience::{Budget, DeniedCache, ErrorCounter, FailureRule, Fallback, Jitter, Switch};
use slidegate::store::{FeedVersion, InvalidationFeed, MemoryStore, Operation, Optional, Responses, Store};
use slidegate::{Check, Clock, ManualClock, Policy, StoreError, StoreStack, SystemClock, Verb};

/// A store that records calls and has a feed.
struct Recording {
    store: MemoryStore<ManualClock>,
    feed: Arc<InvalidationFeed>,
    is_immediate: bool,
    batches: Arc<Mutex<Vec<usize>>>,
    budgets: Arc<Mutex<Vec<Duration>>>,
    forgotten: Arc<AtomicUsize>,
}

impl Recording {
    fn new(is_immediate: bool) -> Self {
        Self {
            store: MemoryStore::builder().clock(ManualClock::at(77_000)).build().unwrap(),
            feed: Arc::new(InvalidationFeed::new(1)),
            is_immediate,
            batches: Arc::default(),
            budgets: Arc::default(),
            forgotten: Arc::default(),
        }
    }
}

impl Store for Recording {
    async fn execute(&self, operations: &[Operation<'_>]) -> Responses {
        self.batches.lock().unwrap().push(operations.len());
        self.store.execute(operations).await
    }

    async fn execute_within(&self, operations: &[Operation<'_>], budget: Duration) -> Responses {
        self.budgets.lock().unwrap().push(budget);
        self.store.execute(operations).await
    }

    async fn forget(&self, policy: &Policy) -> Result<Option<u64>, StoreError> {
        self.forgotten.fetch_add(1, Ordering::Relaxed);
        self.store.forget(policy).await
    }

    fn clock(&self) -> &dyn Clock {
        self.store.clock()
    }

    fn is_immediate(&self) -> bool {
        self.is_immediate
    }

    fn feed_version(&self, _: &Check<'_>) -> Option<FeedVersion> {
        Some(self.feed.version(0))
    }
}

/// A store that implements only the required method.
struct Minimal(MemoryStore);

impl Store for Minimal {
    async fn execute(&self, operations: &[Operation<'_>]) -> Responses {
        self.0.execute(operations).await
    }
}

/// Expected properties of a layer.
struct Expected {
    needs_timer: bool,
}

/// Checks a layer over a recording store.
fn assert_forwards<S: Store>(layer: impl Fn(Recording) -> S, expected: &Expected) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let policy = Policy::parse("api", ["3/1m fixed-window"]).unwrap();
    for is_immediate in [false, true] {
        let recording = Recording::new(is_immediate);
        let (batches, budgets) = (Arc::clone(&recording.batches), Arc::clone(&recording.budgets));
        let forgotten = Arc::clone(&recording.forgotten);
        let store = layer(recording);
        assert_eq!(store.clock().now_ms(), 77_000, "the clock is the store's");
        assert!(store.feed_version(&policy.key("a")).is_some(), "the feed is the store's");
        assert_eq!(store.is_immediate(), is_immediate && !expected.needs_timer);
        let operation = |key| Operation::new(Verb::Check, policy.key(key));
        let many = [operation("a"), operation("b"), operation("a")];
        if store.is_immediate() {
            let mut future = pin!(store.execute(&many));
            let Poll::Ready(responses) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) else {
                panic!("the future of an immediate store is ready when it is first polled");
            };
            assert_eq!(responses.len(), 3);
        } else {
            let responses = runtime.block_on(store.execute(&many));
            assert!(responses.iter().all(|response| response.as_ref().unwrap().is_allowed()));
        }
        let calls = batches.lock().unwrap().len() + budgets.lock().unwrap().len();
        assert_eq!(calls, 1, "one call for the whole batch");
        let used = |key| {
            let responses = runtime.block_on(store.execute(&[Operation::new(Verb::Peek, policy.key(key))]));
            responses.into_single().unwrap().quotas()[0].used
        };
        assert_eq!([used("a"), used("b"), used("c")], [2, 1, 0]);
        runtime.block_on(store.forget(&policy)).unwrap();
        assert_eq!((forgotten.load(Ordering::Relaxed), used("a")), (1, 0));
    }
}

#[test]
fn every_layer_forwards_the_properties_of_its_store() {
    let (immediate, timed) = (Expected { needs_timer: false }, Expected { needs_timer: true });
    assert_forwards(|store| store, &immediate);
    assert_forwards(Arc::new, &immediate);
    assert_forwards(Switch::new, &immediate);
    assert_forwards(|store| Jitter::new(store, Duration::from_millis(5)), &immediate);
    assert_forwards(DeniedCache::new, &immediate);
    assert_forwards(ErrorCounter::new, &immediate);
    for is_present in [false, true] {
        assert_forwards(|store| Optional::new(is_present, store, Switch::new), &immediate);
    }
    assert_forwards(|store| Budget::new(store, Duration::from_mins(1)), &timed);
    let fallback = |store| {
        let clock = ManualClock::at(77_000);
        Fallback::builder(store).clock(clock).budget(Duration::from_mins(1)).build().unwrap()
    };
    assert_forwards(fallback, &timed);
    assert_forwards(
        |store| Switch::new(Jitter::new(DeniedCache::new(fallback(store)), Duration::ZERO)),
        &timed,
    );
}

/// A layer that passes the budget on sets no timer: the runtime has none, so a timer would panic.
#[test]
fn a_budget_reaches_the_store_without_a_timer() {
    fn budgets_of<S: Store>(layer: impl Fn(Recording) -> S) -> Vec<Duration> {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let recording = Recording::new(false);
        let budgets = Arc::clone(&recording.budgets);
        let store = layer(recording);
        let policy = Policy::parse("api", ["3/1m"]).unwrap();
        let operation = Operation::new(Verb::Peek, policy.key("a"));
        for budget in [SHORT, LONG] {
            let responses = runtime.block_on(store.execute_within(&[operation], budget));
            assert!(responses.into_single().unwrap().is_allowed());
        }
        budgets.lock().unwrap().clone()
    }

    const SHORT: Duration = Duration::from_millis(5);
    const OWN: Duration = Duration::from_millis(20);
    const LONG: Duration = Duration::from_millis(100);
    assert_eq!(budgets_of(|store| store), [SHORT, LONG]);
    assert_eq!(budgets_of(Arc::new), [SHORT, LONG]);
    assert_eq!(budgets_of(|store| Optional::new(false, store, Switch::new)), [SHORT, LONG]);
    assert_eq!(budgets_of(|store| Budget::new(store, OWN)), [SHORT, OWN]);
    assert_eq!(budgets_of(|store| Optional::new(true, store, |store| Budget::new(store, OWN))), [SHORT, OWN]);

    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let recording = Recording::new(false);
    let budgets = Arc::clone(&recording.budgets);
    let rule = FailureRule::default().budget(LONG);
    let fallback = Fallback::builder(recording).budget(OWN).policy("slow", rule).build().unwrap();
    for name in ["api", "slow"] {
        let policy = Policy::parse(name, ["3/1m"]).unwrap();
        let operation = Operation::new(Verb::Peek, policy.key("a"));
        let _ = runtime.block_on(fallback.execute(&[operation]));
    }
    assert_eq!(*budgets.lock().unwrap(), [OWN, LONG], "of the policy's failure rule");
}

#[test]
fn a_store_needs_one_method() {
    fn assert_defaults(store: &impl Store) {
        let policy = Policy::parse("api", ["3/1m"]).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let responses = runtime.block_on(store.execute(&[Operation::new(Verb::Check, policy.key("a"))]));
        assert!(responses.into_single().unwrap().is_allowed());
        let error = runtime.block_on(store.forget(&policy)).unwrap_err();
        assert!(error.is_usage() && !error.is_transient());
        assert_eq!(
            error.to_string(),
            "this store cannot clear all keys of a policy; reset the keys one by one"
        );
        let (before, clock) = (SystemClock::default().now_ms(), store.clock().now_ms());
        assert!((before - 1000..before + 60_000).contains(&clock), "the clock is the system's");
    }

    let store = || Minimal(MemoryStore::new());
    assert_defaults(&store());
    assert_defaults(&Switch::new(ErrorCounter::new(Arc::new(store()))));
}

/// The stack and the store inside it implement `Store` themselves, so each could miss a method that has a default.
#[test]
fn a_stack_forwards_the_clock_and_a_policy_reset() {
    let stack = StoreStack::builder().clock(ManualClock::at(77_000)).in_memory().unwrap();
    assert_eq!(stack.clock().now_ms(), 77_000);
    let policy = Policy::parse("api", ["1/1m"]).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let check = || {
        let responses = runtime.block_on(stack.execute(&[Operation::new(Verb::Check, policy.key("a"))]));
        responses.into_single().unwrap().is_allowed()
    };
    assert_eq!([check(), check()], [true, false]);
    runtime.block_on(stack.forget(&policy)).unwrap();
    assert!(check());
}
