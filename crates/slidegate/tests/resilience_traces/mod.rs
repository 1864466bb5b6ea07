//! Stores, policies and traces for tests of layers over a store.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::HashMap;
use std::fmt::Debug;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};

use proptest::collection::vec;
use proptest::prelude::{Just, Strategy, prop_oneof};
use proptest::sample::select;
use proptest::test_runner::{Config, TestRunner};
use slidegate::store::{MemoryStore, Operation, Responses, Store};
use slidegate::{Algorithm, Check, Clock, Decision, ManualClock, Policy, StoreError, Verb};
use slidegate_core::{Action, State, decide};

/// A time in the middle of a window of any length.
pub(crate) const START: u64 = 1_800_000_012_345;
pub(crate) const KEYS: [&str; 2] = ["a", "b"];

pub(crate) type Memory = MemoryStore<ManualClock>;

/// Returns a memory store on the cache's clock. It holds all keys of a test and never evicts.
pub(crate) fn memory(clock: &ManualClock) -> Memory {
    MemoryStore::builder().max_keys(1000).clock(clock.clone()).build().unwrap()
}

pub(crate) fn poll<F: Future + ?Sized>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

/// Returns the output of a future that completes on its first poll.
pub(crate) fn at_once<T>(future: impl Future<Output = T>) -> T {
    match poll(pin!(future)) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("the future is pending"),
    }
}

/// The core over a map that keeps all states. A memory store may drop an expired state that a changed quota would still
/// count, so two memory stores may differ.
pub(crate) struct ExactStore {
    states: Mutex<HashMap<Vec<u8>, Vec<State>>>,
    clock: ManualClock,
}

pub(crate) fn exact_store(clock: &ManualClock) -> ExactStore {
    ExactStore { states: Mutex::default(), clock: clock.clone() }
}

impl Store for ExactStore {
    async fn execute(&self, operations: &[Operation<'_>]) -> Responses {
        let mut states = self.states.lock().unwrap();
        let decide_one = |operation: &Operation<'_>| {
            let Operation { verb, check: Check { policy, key, cost, .. }, .. } = *operation;
            let action = Action::new(verb, self.clock.now_ms(), cost);
            Ok(decide(states.entry(key.to_vec()).or_default(), policy, action).0)
        };
        operations.iter().map(decide_one).collect()
    }

    fn clock(&self) -> &dyn Clock {
        &self.clock
    }
}

/// One request of a trace.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) verb: Verb,
    pub(crate) key: &'static str,
    pub(crate) cost: u64,
    /// Offset of the caller's version of the policy from the current one.
    pub(crate) versions_ahead: usize,
}

impl Request {
    pub(crate) fn under(self, policy: &Policy) -> Operation<'_> {
        Operation::new(self.verb, policy.key(self.key).cost(self.cost))
    }
}

pub(crate) fn request() -> impl Strategy<Value = Request> {
    let verb = prop_oneof![
        12 => Just(Verb::Check),
        3 => Just(Verb::Peek),
        1 => Just(Verb::Refund),
        1 => Just(Verb::Reset),
    ];
    // The limits are 3 to 9.
    let cost = prop_oneof![3 => 1..=2_u64, 2 => 0..=11_u64];
    let versions_ahead = prop_oneof![9 => Just(0), 1 => 1..8_usize];
    (verb, select(&KEYS[..]), cost, versions_ahead).prop_map(|(verb, key, cost, versions_ahead)| Request {
        verb,
        key,
        cost,
        versions_ahead,
    })
}

/// A step of a trace.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// A single request, or a batch.
    Send(Vec<Request>),
    Wait {
        ms: u64,
    },
    /// Until the retry time of the last denial, less `early_ms`.
    WaitUntilRetry {
        early_ms: u64,
    },
    /// Switches to another version of the policy.
    Change(usize),
}

fn wait_ms() -> impl Strategy<Value = u64> {
    prop_oneof![1..=3_u64, 1..=400_u64, 1..=9000_u64]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        12 => vec(request(), 1).prop_map(Step::Send),
        2 => vec(request(), 2..=5).prop_map(Step::Send),
        3 => wait_ms().prop_map(|ms| Step::Wait { ms }),
        3 => (0..=3_u64).prop_map(|early_ms| Step::WaitUntilRetry { early_ms }),
        1 => (0..8_usize).prop_map(Step::Change),
    ]
}

#[derive(Clone, Debug)]
pub(crate) struct Trace {
    pub(crate) max_age_ms: u64,
    pub(crate) steps: Vec<Step>,
}

pub(crate) fn trace() -> impl Strategy<Value = Trace> {
    let max_age_ms = select(&[50, 900, 10_000_u64][..]);
    (max_age_ms, vec(step(), 1..120)).prop_map(|(max_age_ms, steps)| Trace { max_age_ms, steps })
}

pub(crate) fn algorithm() -> impl Strategy<Value = Algorithm> {
    select(Algorithm::ALL)
}

/// Versions of one policy: other limits, other windows, several quotas, one algorithm or all.
pub(crate) fn versions(algorithm: Algorithm) -> Vec<Policy> {
    let option = match algorithm {
        Algorithm::TokenBucket => "burst=7",
        Algorithm::StrictWindow => "slots=4",
        Algorithm::SlidingWindow | Algorithm::FixedWindow => "anchor=first-request",
        _ => "",
    };
    let of_one_algorithm: [&[&str]; 6] =
        [&["5/1s"], &["8/1s"], &["3/1s"], &["5/400ms"], &["4/1s", "7/3s"], &["9/3s", "3/200ms", "6/1s"]];
    let all = ["5/1s", "6/2s strict-window", "7/3s sliding-log", "8/4s fixed-window", "9/5s token-bucket"];
    let parse = |quotas: &[String]| Policy::parse("p", quotas.iter().map(String::as_str)).unwrap();
    let mut versions: Vec<_> = of_one_algorithm
        .iter()
        .map(|quotas| parse(&quotas.iter().map(|quota| format!("{quota} {algorithm}")).collect::<Vec<_>>()))
        .collect();
    versions.push(parse(&all.map(String::from)));
    versions.push(parse(&[format!("5/1s {algorithm} {option}")]));
    versions
}

/// Runs a property on many cases and asserts that the cache had enough hits.
pub(crate) fn check_property<T: Debug>(
    cases: u32,
    strategy: impl Strategy<Value = T>,
    property: impl Fn(T) -> u64,
) {
    let hits = AtomicU64::new(0);
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let outcome = TestRunner::new(config).run(&strategy, |case| {
        hits.fetch_add(property(case), Ordering::Relaxed);
        Ok(())
    });
    outcome.unwrap_or_else(|failure| panic!("{failure}"));
    assert!(hits.into_inner() > u64::from(cases), "the cache was hardly used");
}

/// A remote store: a request is sent on the first poll, decided on the second and completed on the third.
pub(crate) struct Distant(pub(crate) Memory);

impl Store for Distant {
    async fn execute(&self, operations: &[Operation<'_>]) -> Responses {
        half_round_trip().await;
        let responses = self.0.execute_many_now(operations);
        half_round_trip().await;
        responses.into_iter().collect()
    }

    async fn forget(&self, policy: &Policy) -> Result<Option<u64>, StoreError> {
        half_round_trip().await;
        let result = self.0.forget_now(policy);
        half_round_trip().await;
        result
    }

    fn clock(&self) -> &dyn Clock {
        self.0.clock()
    }
}

/// Executes one operation.
pub(crate) async fn execute_one(
    store: &impl Store,
    operation: Operation<'_>,
) -> Result<Decision, StoreError> {
    store.execute(&[operation]).await.into_single()
}

async fn half_round_trip() {
    let mut is_sent = false;
    poll_fn(|_| if std::mem::replace(&mut is_sent, true) { Poll::Ready(()) } else { Poll::Pending }).await;
}
