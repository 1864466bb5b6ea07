//! The cache of denials: it denies only requests that the store would deny. Also the jitter over it.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod delayed_requests;
mod jitter;
#[path = "../resilience_traces/mod.rs"]
mod resilience_traces;

use std::collections::HashMap;
use std::future::pending;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use metrics::{Counter, CounterFn, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};
use proptest::prelude::Strategy;
use proptest::sample::select;
use slidegate::SettingsError;
use slidegate::resilience::DeniedCache;
use slidegate::store::{MemoryStore, Operation, Store};
use slidegate::{Check, Clock, Decision, ManualClock, Policy, Sleep, Source, Verb};

use resilience_traces::{
    Distant, KEYS, Memory, Request, START, Step, Trace, algorithm, at_once, check_property, exact_store,
    execute_one, memory, poll, trace, versions,
};

fn cache<S: Store>(store: S, clock: &ManualClock, max_age_ms: u64) -> DeniedCache<S, ManualClock> {
    let max_age = Duration::from_millis(max_age_ms);
    DeniedCache::builder(store).clock(clock.clone()).max_age(max_age).build().unwrap()
}

fn execute(store: &impl Store, verb: Verb, check: Check<'_>) -> Decision {
    at_once(store.execute(&[Operation::new(verb, check)])).into_single().unwrap()
}

fn check(store: &impl Store, check: Check<'_>) -> Decision {
    execute(store, Verb::Check, check)
}

/// Runs a trace through a cache and through a store without one. Returns the number of cache hits.
fn compare<S: Store>(store: impl Fn(&ManualClock) -> S, trace: Trace, versions: &[Policy]) -> u64 {
    let clock = ManualClock::at(START);
    let (cache, twin) = (cache(store(&clock), &clock, trace.max_age_ms), store(&clock));
    let (mut version, mut retry_at_ms, mut hits) = (0, START, 0);
    let mut denied_costs = HashMap::new();
    for step in trace.steps {
        let requests = match step {
            Step::Send(requests) => requests,
            Step::Wait { ms } => {
                clock.advance(ms);
                continue;
            }
            Step::WaitUntilRetry { early_ms } => {
                clock.set(clock.now_ms().max(retry_at_ms.saturating_sub(early_ms)));
                continue;
            }
            Step::Change(to) => {
                version = to;
                continue;
            }
        };
        let operations: Vec<_> = requests
            .iter()
            .map(|request| request.under(&versions[(version + request.versions_ahead) % versions.len()]))
            .collect();
        let responses = at_once(cache.execute(&operations));
        let expected = at_once(twin.execute(&operations));
        assert_eq!(responses.len(), expected.len());
        for (request, (response, expected)) in requests.iter().zip(responses.into_iter().zip(expected)) {
            let (response, expected) = (response.unwrap(), expected.unwrap());
            if let Some(after_ms) = expected.retry_after_ms() {
                retry_at_ms = clock.now_ms() + after_ms;
            }
            if response.source() == Source::Store {
                assert_eq!(response, expected, "{request:?}");
                if request.verb == Verb::Check && !response.is_allowed() {
                    denied_costs.insert(request.key, request.cost);
                }
            } else {
                assert_consistent(request, denied_costs[request.key], &response, &expected);
                hits += 1;
            }
        }
    }
    for (policy, key) in versions.iter().flat_map(|policy| KEYS.map(|key| (policy, key))) {
        let peek = Operation::new(Verb::Peek, policy.key(key));
        assert_eq!(
            at_once(cache.store().execute(&[peek])).into_single(),
            at_once(twin.execute(&[peek])).into_single(),
            "the stores differ"
        );
    }
    hits
}

/// Asserts that a cached response is consistent with `expected`, the store's decision at that moment.
fn assert_consistent(request: &Request, denied_cost: u64, response: &Decision, expected: &Decision) {
    assert_eq!(response.source(), Source::Cache);
    assert!(!expected.is_allowed(), "{request:?} is denied, and would not have been");
    assert!(
        !response.is_allowed() && response.is_never() == expected.is_never(),
        "{request:?}: {response:?}"
    );
    assert!(denied_cost <= request.cost, "{request:?} is denied for a larger cost, {denied_cost}");
    if denied_cost == request.cost {
        assert_eq!(response.retry(), expected.retry(), "{request:?}");
        assert!(response.violated().eq(expected.violated()), "{request:?}: {response:?} {expected:?}");
    } else {
        assert!(response.retry() <= expected.retry(), "{request:?}: {response:?} {expected:?}");
    }
}

#[test]
fn a_cache_decides_like_the_store_without_it() {
    let case = (trace(), algorithm().prop_flat_map(|algorithm| select(versions(algorithm))));
    check_property(1000, case, |(trace, policy)| compare(memory, trace, &[policy]));
}

#[test]
fn a_cache_decides_like_the_store_without_it_while_limits_change() {
    check_property(1500, (trace(), algorithm()), |(trace, algorithm)| {
        compare(exact_store, trace, &versions(algorithm))
    });
}

/// `5/1s` in windows that begin with the first request, so that a denial lasts 1 s.
fn policy() -> Policy {
    Policy::parse("p", ["5/1s fixed-window anchor=first-request"]).unwrap()
}

#[test]
fn a_denial_is_cached_until_a_millisecond_before_its_end() {
    let clock = ManualClock::at(START);
    let (cache, policy) = (cache(memory(&clock), &clock, 10_000), policy());
    assert!(check(&cache, policy.key("a").cost(5)).is_allowed());
    assert_eq!(check(&cache, policy.key("a").cost(2)).source(), Source::Store);
    clock.advance(998);
    for verb in [Verb::Check, Verb::Peek] {
        let cached = execute(&cache, verb, policy.key("a").cost(2));
        assert_eq!((cached.source(), cached.retry_after_ms()), (Source::Cache, Some(2)));
    }
    assert_eq!(
        check(&cache, policy.key("a").cost(1)).source(),
        Source::Store,
        "a smaller cost is not cached"
    );
    assert!(check(&cache, policy.key("a").cost(6)).is_never(), "a cost above the limit is never allowed");
    clock.advance(1);
    let decided = check(&cache, policy.key("a").cost(2));
    assert_eq!((decided.source(), decided.retry_after_ms()), (Source::Store, Some(1)));
    clock.advance(1);
    assert!(check(&cache, policy.key("a").cost(2)).is_allowed());
}

/// A clock whose milliseconds begin `ahead_us` earlier than those of `now_us`.
struct Shifted {
    now_us: Arc<AtomicU64>,
    ahead_us: u64,
}

impl Clock for Shifted {
    fn now_ms(&self) -> u64 {
        (self.now_us.load(Ordering::Relaxed) + self.ahead_us) / 1000
    }

    fn sleep(&self, _: u64) -> Sleep<'_> {
        Box::pin(pending())
    }
}

/// Phase offsets between clocks are the reason that a cached denial ends 1 ms early.
#[test]
fn milliseconds_of_store_and_cache_may_begin_at_different_moments() {
    let policy = Policy::parse("p", ["1/20ms token-bucket"]).unwrap();
    let shifts = (0..1000).step_by(50).flat_map(|ahead| (0..1000).step_by(50).map(move |sent| (ahead, sent)));
    for (ahead_us, sent_us) in shifts {
        let now_us = Arc::new(AtomicU64::new(START * 1000 + sent_us));
        let clock = |ahead_us| Shifted { now_us: Arc::clone(&now_us), ahead_us };
        let store = MemoryStore::builder().max_keys(10).clock(clock(ahead_us)).build().unwrap();
        let cache = DeniedCache::builder(store).clock(clock(0)).build().unwrap();
        assert!(check(&cache, policy.key("a")).is_allowed());
        assert!(!check(&cache, policy.key("a")).is_allowed());
        let mut cached_until_us = 0;
        for passed_us in (50..22_000).step_by(50) {
            now_us.store(START * 1000 + sent_us + passed_us, Ordering::Relaxed);
            if execute(&cache, Verb::Peek, policy.key("a")).source() == Source::Cache {
                let truth = execute(cache.store(), Verb::Peek, policy.key("a"));
                assert!(!truth.is_allowed(), "{ahead_us} µs ahead, sent at {sent_us}, after {passed_us}");
                cached_until_us = passed_us;
            }
        }
        assert!(
            cached_until_us >= 18_000 - 50,
            "the cache drops the denial at most 2 ms early: {cached_until_us}"
        );
    }
}

#[test]
fn only_denied_checks_are_cached() {
    let clock = ManualClock::at(START);
    let (near, policy) = (cache(memory(&clock), &clock, 900), policy());
    assert!(check(&near, policy.key("a").cost(5)).is_allowed());
    assert!(!execute(&near, Verb::Peek, policy.key("a")).is_allowed());
    assert!(near.is_empty());
    assert!(!check(&near, policy.key("a")).is_allowed());
    assert_eq!(near.len(), 1);
    let far = cache(near, &clock, 900);
    assert_eq!(check(&far, policy.key("a")).source(), Source::Cache);
    assert!(far.is_empty(), "a cached denial of another cache is older than it appears");
}

#[test]
fn a_refund_by_another_node_counts_when_the_denial_is_old() {
    for verb in [Verb::Refund, Verb::Reset] {
        let clock = ManualClock::at(START);
        let (store, policy) = (Arc::new(memory(&clock)), policy());
        let [here, there] = [(); 2].map(|()| cache(Arc::clone(&store), &clock, 900));
        assert!(check(&here, policy.key("a").cost(5)).is_allowed());
        assert!(!check(&here, policy.key("a")).is_allowed());
        let _ = execute(&there, verb, policy.key("a").cost(2));
        clock.advance(899);
        assert_eq!(check(&here, policy.key("a")).source(), Source::Cache, "no invalidation arrived");
        clock.advance(1);
        assert!(check(&here, policy.key("a")).is_allowed());
        assert!(check(&there, policy.key("a")).is_allowed());
    }
}

/// A denial without a retry time expires by age.
#[test]
fn a_never_denial_is_cached_up_to_the_maximum_age() {
    let clock = ManualClock::at(START);
    let (cache, policy) = (cache(memory(&clock), &clock, 900), policy());
    let sources = [0, 899, 1].map(|ms| {
        clock.advance(ms);
        let denied = check(&cache, policy.key("a").cost(6));
        assert!(denied.is_never());
        denied.source()
    });
    assert_eq!(sources, [Source::Store, Source::Cache, Source::Store]);
}

/// The store denies before the refund, and the denial arrives after it.
#[test]
fn a_denial_that_arrives_after_a_refund_is_not_cached() {
    let clock = ManualClock::at(START);
    let (cache, policy) = (cache(Distant(memory(&clock)), &clock, 900), policy());
    assert!(check(&cache.store().0, policy.key("a").cost(5)).is_allowed());
    let send = |verb| execute_one(&cache, Operation::new(verb, policy.key("a")));
    for verb in [Verb::Refund, Verb::Reset] {
        let mut denied = pin!(send(Verb::Check));
        assert!(poll(denied.as_mut()).is_pending() && poll(denied.as_mut()).is_pending(), "sent and decided");
        let mut refund = pin!(send(verb));
        assert!(poll(refund.as_mut()).is_pending() && poll(refund.as_mut()).is_pending());
        assert!(poll(refund).is_ready());
        let Poll::Ready(Ok(denied)) = poll(denied) else { panic!("the response is due") };
        assert!(!denied.is_allowed());
        assert!(cache.is_empty());
        assert!(check(&cache.store().0, policy.key("a")).is_allowed());
        let _ = check(&cache.store().0, policy.key("a").cost(4));
    }
}

/// The check is sent after the refund, is decided before it, and its denial arrives first.
#[test]
fn a_denial_that_arrives_before_a_refund_is_dropped_with_it() {
    let clock = ManualClock::at(START);
    let (cache, policy) = (cache(Distant(memory(&clock)), &clock, 900), policy());
    assert!(check(&cache.store().0, policy.key("a").cost(5)).is_allowed());
    let send = |verb| execute_one(&cache, Operation::new(verb, policy.key("a")));
    for is_cancelled in [true, false] {
        let mut refund = Box::pin(send(Verb::Refund));
        assert!(poll(refund.as_mut()).is_pending());
        let mut denied = pin!(send(Verb::Check));
        assert!(poll(denied.as_mut()).is_pending() && poll(denied.as_mut()).is_pending());
        assert!(poll(denied).is_ready());
        assert_eq!(cache.len(), 1, "the denial holds until the refund");
        assert!(poll(refund.as_mut()).is_pending() || is_cancelled);
        if is_cancelled {
            drop(refund);
            let _ = check(&cache.store().0, policy.key("a"));
        } else {
            assert!(poll(refund.as_mut()).is_ready());
        }
        assert!(cache.is_empty());
    }
}

#[test]
fn a_forgotten_policy_ends_its_denials_and_no_others() {
    let clock = ManualClock::at(START);
    let cache = cache(memory(&clock), &clock, 10_000);
    let [policy, other] = ["api", "other"].map(|name| Policy::parse(name, ["1/1h"]).unwrap());
    let keys: Vec<String> = (0..100).map(|number| number.to_string()).collect();
    let all_from = |policy: &Policy, source: Source| {
        keys.iter().all(|key| check(&cache, policy.key(key)).source() == source)
    };
    for policy in [&policy, &other] {
        assert!(all_from(policy, Source::Store) && all_from(policy, Source::Store));
        assert!(all_from(policy, Source::Cache));
    }
    at_once(cache.forget(&policy)).unwrap();
    assert!(keys.iter().all(|key| check(&cache, policy.key(key)).is_allowed()));
    assert!(all_from(&other, Source::Cache));
}

/// The store denies before the forget, and the denial arrives after it.
#[test]
fn a_denial_that_arrives_after_a_forget_is_not_cached() {
    let clock = ManualClock::at(START);
    let (cache, policy) = (cache(Distant(memory(&clock)), &clock, 900), policy());
    assert!(check(&cache.store().0, policy.key("a").cost(5)).is_allowed());
    let mut denied = pin!(execute_one(&cache, Operation::new(Verb::Check, policy.key("a"))));
    assert!(poll(denied.as_mut()).is_pending() && poll(denied.as_mut()).is_pending(), "sent and decided");
    let mut forget = Box::pin(cache.forget(&policy));
    assert!(poll(forget.as_mut()).is_pending() && poll(forget.as_mut()).is_pending());
    assert!(poll(forget.as_mut()).is_ready());
    drop(forget);
    let Poll::Ready(Ok(denied)) = poll(denied) else { panic!("the response is due") };
    assert!(!denied.is_allowed() && cache.is_empty());
    assert!(check(&cache.store().0, policy.key("a")).is_allowed());
}

#[test]
fn a_refund_in_flight_ends_the_cached_denial() {
    let clock = ManualClock::at(START);
    let (cache, policy) = (cache(Distant(memory(&clock)), &clock, 900), policy());
    let send = |verb, cost| execute_one(&cache, Operation::new(verb, policy.key("a").cost(cost)));
    let mut denied = pin!(send(Verb::Check, 6));
    while poll(denied.as_mut()).is_pending() {}
    assert_eq!(cache.len(), 1);
    let mut refund = pin!(send(Verb::Refund, 1));
    assert!(poll(refund.as_mut()).is_pending() && cache.is_empty());
}

#[test]
fn a_batch_sends_uncached_requests_in_one_round_trip() {
    let clock = ManualClock::at(START);
    let (cache, policy) = (cache(Distant(memory(&clock)), &clock, 900), policy());
    let operation = |verb, key: &'static str, cost| Operation::new(verb, policy.key(key).cost(cost));
    let send = |operations: &[Operation<'_>]| {
        let mut responses = pin!(cache.execute(operations));
        let mut polls = 0;
        loop {
            polls += 1;
            if let Poll::Ready(responses) = poll(responses.as_mut()) {
                return (polls, responses.into_iter().map(Result::unwrap).collect::<Vec<_>>());
            }
        }
    };
    let outcomes = |responses: &[Decision]| -> Vec<_> {
        responses.iter().map(|response| (response.source(), response.is_allowed())).collect()
    };
    let spend = ["a", "b"].map(|key| operation(Verb::Check, key, 5));
    let (_, responses) = send(&[spend[0], spend[1], spend[0], spend[1]]);
    let (from_store, from_cache) = (Source::Store, Source::Cache);
    assert_eq!(
        outcomes(&responses),
        [(from_store, true), (from_store, true), (from_store, false), (from_store, false)]
    );

    let (polls, responses) = send(&[spend[0], operation(Verb::Check, "c", 1), spend[1]]);
    assert_eq!(
        (polls, outcomes(&responses)),
        (3, vec![(from_cache, false), (from_store, true), (from_cache, false)])
    );
    let (polls, responses) = send(&[spend[1], spend[0], spend[1]]);
    assert_eq!((polls, outcomes(&responses)), (1, vec![(from_cache, false); 3]), "no request is sent");
    assert_eq!(send(&[]).1, []);

    let (polls, responses) = send(&[spend[0], operation(Verb::Refund, "a", 5), spend[0], spend[1]]);
    let expected = vec![(from_store, false), (from_store, true), (from_store, true), (from_cache, false)];
    assert_eq!((polls, outcomes(&responses)), (3, expected));
}

#[test]
fn a_flood_of_denied_keys_stays_within_the_capacity() {
    let clock = ManualClock::at(START);
    let policy = policy();
    for capacity in [1, 2, 63, 65, 1000] {
        let cache =
            DeniedCache::builder(memory(&clock)).clock(clock.clone()).capacity(capacity).build().unwrap();
        assert_eq!(cache.capacity(), capacity);
        let keys = if capacity == 1000 { 1_000_000 } else { 10_000 };
        for number in 0..keys {
            let key = format!("key {number}");
            assert!(!check(&cache, policy.key(&key).cost(6)).is_allowed());
            let again = check(&cache, policy.key(&key).cost(6));
            assert_eq!(again.source(), Source::Cache, "the newest denial is cached");
            if number % (keys / 10) == 0 {
                assert!(cache.len() <= capacity);
            }
        }
        assert_eq!(cache.len(), capacity, "the cache is full");
    }
}

/// A shard has 8 entries. It is very unlikely that 9 of these 32 keys share one.
#[test]
fn expired_denials_are_evicted_first() {
    let clock = ManualClock::at(START);
    let policy = policy();
    let cache = DeniedCache::builder(memory(&clock)).clock(clock.clone()).capacity(512).build().unwrap();
    let deny = |key: String| check(&cache, policy.key(&key).cost(6)).source();
    for number in 0..10_000 {
        assert_eq!(deny(format!("old {number}")), Source::Store);
    }
    assert_eq!(cache.len(), 512);
    clock.advance(1000);
    for source in [Source::Store, Source::Cache] {
        assert!((0..32).all(|number| deny(format!("new {number}")) == source));
    }
}

#[test]
fn settings_out_of_range_are_named() {
    let builder = || DeniedCache::builder(memory(&ManualClock::at(START)));
    let rejection = |result: Result<DeniedCache<Memory>, _>| {
        let error: SettingsError = result.unwrap_err();
        format!("{} / {error}", error.field())
    };
    let too_small = rejection(builder().capacity(0).build());
    assert_eq!(too_small, "capacity / capacity: 0 is not between 1 and 2^24 (16777216)");
    assert!(rejection(builder().capacity((1 << 24) + 1).build()).starts_with("capacity / "));
    for max_age in [Duration::ZERO, Duration::from_micros(1500), Duration::from_millis(10_001)] {
        let expected = format!(
            "max_age / max_age: {max_age:?} is not a whole number of milliseconds between 1 ms and 10s"
        );
        assert_eq!(rejection(builder().max_age(max_age).build()), expected);
    }
    assert_eq!(DeniedCache::new(memory(&ManualClock::at(START))).capacity(), 65_536);
}

/// Counts by name and labels.
#[derive(Clone, Default)]
struct Counts(Arc<Mutex<HashMap<String, u64>>>);

struct Count {
    name: String,
    counts: Counts,
}

impl CounterFn for Count {
    fn increment(&self, value: u64) {
        *self.counts.0.lock().unwrap().entry(self.name.clone()).or_default() += value;
    }

    fn absolute(&self, _: u64) {}
}

impl Recorder for Counts {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        let labels: Vec<_> =
            key.labels().map(|label| format!(" {}={}", label.key(), label.value())).collect();
        let name = key.name().trim_start_matches("slidegate_denied_cache_").to_owned() + &labels.concat();
        Counter::from_arc(Arc::new(Count { name, counts: self.clone() }))
    }

    fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::noop()
    }

    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}

#[test]
fn a_cache_counts_hits_stores_and_drops() {
    let counts = Counts::default();
    metrics::with_local_recorder(&counts, || {
        let clock = ManualClock::at(START);
        let (cache, policy) = (cache(memory(&clock), &clock, 900), policy());
        let deny = || assert!(!check(&cache, policy.key("a").cost(4)).is_allowed());
        assert!(check(&cache, policy.key("a").cost(2)).is_allowed());
        deny();
        deny();
        assert!(check(&cache, policy.key("a").cost(1)).is_allowed());
        deny();
        let raised = Policy::parse("p", ["6/1s fixed-window anchor=first-request"]).unwrap();
        assert!(check(&cache, raised.key("a").cost(1)).is_allowed());
        deny();
        let _ = execute(&cache, Verb::Refund, policy.key("a"));
        deny();
        deny();
        let _ = execute(&cache, Verb::Reset, policy.key("a"));
        assert!(check(&cache, policy.key("a").cost(2)).is_allowed());
        deny();
        at_once(cache.forget(&policy)).unwrap();
    });
    let mut counts: Vec<_> = counts.0.lock().unwrap().clone().into_iter().collect();
    counts.sort();
    let expected = [
        ("dropped_total reason=forget", 1),
        ("dropped_total reason=limits", 1),
        ("dropped_total reason=refund", 1),
        ("dropped_total reason=reset", 1),
        ("dropped_total reason=spent", 1),
        ("hits_total", 2),
        ("stored_total", 5),
    ];
    assert_eq!(counts, expected.map(|(name, count)| (name.to_owned(), count)));
}
