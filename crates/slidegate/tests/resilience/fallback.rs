//! Guarantees of each part of the degradation layer, in virtual time.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use slidegate::resilience::{
    BreakerState, Budget, FailureRule, Fallback, Mode, OnFailure, PolicySwitch, Switch,
};
use slidegate::store::{Store, StoreLimiter};
use slidegate::{Clock, FallbackReason, Policy, Source};

use crate::faulty::{Fault, FaultyStore, VirtualClock, sleep};

/// Returns a store and a handle that sets its fault.
fn store(clock: VirtualClock) -> (FaultyStore, Arc<Mutex<Fault>>) {
    let fault = Arc::new(Mutex::new(Fault::None));
    let read = Arc::clone(&fault);
    (FaultyStore::new(clock, move || *read.lock().unwrap()), fault)
}

fn policy(name: &str) -> Policy {
    Policy::parse(name, ["4/10s strict-window"]).unwrap()
}

/// All faults, and the reason of the fallback decision for each.
const FAULTS: [(Fault, FallbackReason); 7] = [
    (Fault::Down, FallbackReason::Unavailable),
    (Fault::BlackHole, FallbackReason::Timeout),
    (Fault::Lost, FallbackReason::Timeout),
    (Fault::Slow(21), FallbackReason::Timeout),
    (Fault::Slow(1000), FallbackReason::Timeout),
    (Fault::Permanent, FallbackReason::Refused),
    (Fault::Full, FallbackReason::Full),
];

#[tokio::test(start_paused = true)]
async fn no_call_exceeds_the_budget_under_any_fault() {
    let clock = VirtualClock::new();
    for (fault, _) in FAULTS {
        let store = FaultyStore::new(clock, move || fault);
        let limiter = StoreLimiter::new(Budget::new(store, Duration::from_millis(20)));
        let policy = policy("api");
        let sent_ms = clock.now_ms();
        let error = limiter.check(policy.key("k")).await.unwrap_err();
        assert!(clock.now_ms() - sent_ms <= 20, "{fault:?}");
        if let Fault::BlackHole | Fault::Lost | Fault::Slow(_) = fault {
            assert!(error.may_have_counted() && error.is_transient(), "{fault:?}: {error}");
        }
        let sent_ms = clock.now_ms();
        let responses = limiter.check_many(&[policy.key("k"); 5]).await;
        assert!(responses.len() == 5 && responses.iter().all(Result::is_err), "{fault:?}");
        assert!(clock.now_ms() - sent_ms <= 20, "{fault:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_failure_reason_reflects_the_last_response_only() {
    for (failing, reason) in FAULTS {
        let clock = VirtualClock::new();
        let (store, fault) = store(clock);
        let own = FailureRule::new(OnFailure::Open);
        let store = Fallback::builder(store).policy("nightly", own).clock(clock).build().unwrap();
        let limiter = StoreLimiter::new(store);
        let (api, nightly) = (policy("api"), policy("nightly"));
        let reason_now = || limiter.store().failure().map(|failure| failure.reason);
        assert_eq!(reason_now(), None, "no request was sent");
        // The log reports a failure only from time to time, and a policy without further requests must not hide the
        // recovery.
        for (failed, decided) in [(&api, &api), (&api, &api), (&nightly, &api)] {
            *fault.lock().unwrap() = failing;
            let _ = limiter.check(failed.key("a")).await;
            assert_eq!(reason_now(), Some(reason), "{failing:?}");
            *fault.lock().unwrap() = Fault::None;
            assert_eq!(limiter.check(decided.key("b")).await.unwrap().source(), Source::Store);
            assert_eq!(reason_now(), None, "{failing:?}");
        }
        // A batch so large that the breaker ignores a late response.
        *fault.lock().unwrap() = failing;
        let _ = limiter.check_many(&[api.key("c"); 65]).await;
        let failure = limiter.store().failure().unwrap();
        assert_eq!(failure.reason, reason, "{failing:?}: {}", failure.error);
    }
}

/// A large batch may simply need more time than the budget.
#[tokio::test(start_paused = true)]
async fn late_responses_open_the_breaker_unless_the_batch_is_large() {
    for (count, state) in [(64, BreakerState::Open), (65, BreakerState::Closed)] {
        let clock = VirtualClock::new();
        let store = FaultyStore::new(clock, || Fault::BlackHole);
        let limiter = StoreLimiter::new(Fallback::builder(store).clock(clock).build().unwrap());
        let policy = policy("api");
        for _ in 0..10 {
            for response in limiter.check_many(&vec![policy.key("k"); count]).await {
                assert_ne!(response.unwrap().source(), Source::Store);
            }
        }
        assert_eq!(limiter.store().breaker_state(), state, "{count}");
    }
}

#[tokio::test(start_paused = true)]
async fn each_policy_follows_its_failure_rule_and_reports_the_reason() {
    let clock = VirtualClock::new();
    for (fault, reason) in FAULTS {
        let store = Fallback::builder(FaultyStore::new(clock, move || fault))
            .policy("open", FailureRule::new(OnFailure::Open))
            .policy("closed", FailureRule::new(OnFailure::Closed))
            .nodes(2)
            .clock(clock)
            .build()
            .unwrap();
        let limiter = StoreLimiter::new(store);
        let sent_ms = clock.now_ms();

        let open = limiter.check(policy("open").key("k")).await.unwrap();
        assert!(open.is_allowed() && open.source() == Source::Fallback(reason), "{fault:?}: {open:?}");
        let error = limiter.check(policy("closed").key("k")).await.unwrap_err();
        assert_eq!(error.may_have_counted(), reason == FallbackReason::Timeout, "{fault:?}: {error}");
        for expected in [true, true, false] {
            let local = limiter.check(policy("local").key("k")).await.unwrap();
            assert_eq!(local.is_allowed(), expected, "half of four: {fault:?}");
            let resting = Source::Fallback(FallbackReason::Resting);
            assert!(local.source() == Source::Fallback(reason) || local.source() == resting, "{local:?}");
            assert_eq!(local.limit(), 2);
        }
        assert!(clock.now_ms() - sent_ms <= 5 * 20, "{fault:?}");
        let charged = policy("local");
        assert!(limiter.charge(charged.key("charged").cost(1)).await.is_err(), "{fault:?}");
        assert_eq!(limiter.peek(charged.key("charged")).await.unwrap().remaining(), 1, "{fault:?}");
        for _ in 0..3 {
            assert!(limiter.refund(policy("local").key("k")).await.is_err(), "the store did not confirm");
            for mode in ["local", "open"] {
                assert!(limiter.charge(policy(mode).key("k")).await.is_err(), "the store did not count");
            }
        }
        let peeked = limiter.peek(policy("local").key("k")).await.unwrap();
        assert!(!peeked.is_allowed(), "a failed refund gives nothing back");
    }
}

#[tokio::test(start_paused = true)]
async fn admissions_by_the_store_reduce_the_local_share() {
    let clock = VirtualClock::new();
    let (store, fault) = store(clock);
    let limiter = StoreLimiter::new(Fallback::builder(store).nodes(2).clock(clock).build().unwrap());
    let policy = policy("api");
    assert!(limiter.check(policy.key("one")).await.unwrap().is_allowed());
    assert!(limiter.check(policy.key("three").cost(3)).await.unwrap().is_allowed());
    *fault.lock().unwrap() = Fault::Down;
    assert_eq!(limiter.peek(policy.key("one")).await.unwrap().remaining(), 1);
    assert_eq!(
        limiter.peek(policy.key("three")).await.unwrap().remaining(),
        0,
        "the store admitted more than the share"
    );
    assert_eq!(limiter.peek(policy.key("none")).await.unwrap().remaining(), 2);
    sleep(10_000).await;
    assert_eq!(
        limiter.peek(policy.key("three")).await.unwrap().remaining(),
        2,
        "the share recovers with the window"
    );
}

#[tokio::test(start_paused = true)]
async fn a_charge_above_the_share_spends_the_share_and_leaves_no_debt() {
    for quota in
        ["4/10s", "4/10s strict-window", "4/10s token-bucket", "4/10s fixed-window", "4/10s sliding-log"]
    {
        let clock = VirtualClock::new();
        let (store, fault) = store(clock);
        let limiter = StoreLimiter::new(Fallback::builder(store).nodes(2).clock(clock).build().unwrap());
        let policy = Policy::parse("api", [quota]).unwrap();
        for charged in [3, 100, 100] {
            let _ = limiter.charge(policy.key("k").cost(charged)).await.unwrap();
        }
        *fault.lock().unwrap() = Fault::Down;
        assert_eq!(limiter.peek(policy.key("k")).await.unwrap().remaining(), 0, "{quota}");
        let _ = limiter.charge(policy.key("k").cost(100)).await.unwrap_err();
        sleep(20_000).await;
        assert_eq!(limiter.peek(policy.key("k")).await.unwrap().remaining(), 2, "{quota}");
    }
}

#[tokio::test(start_paused = true)]
async fn blocks_and_resets_reach_the_store_in_every_mode() {
    let clock = VirtualClock::new();
    let (store, fault) = store(clock);
    let limiter = StoreLimiter::new(Switch::new(store));
    let policy = policy("api");
    for mode in [Mode::Off, Mode::Shadow, Mode::Enforce] {
        limiter.store().update("api", |switch| switch.mode = mode);
        let _ = limiter.block(policy.key("k"), Duration::from_mins(1)).await.unwrap();
        limiter.store().update("api", |switch| switch.mode = Mode::Enforce);
        assert!(!limiter.check(policy.key("k")).await.unwrap().is_allowed(), "{mode:?}: blocked");

        limiter.store().update("api", |switch| switch.mode = mode);
        assert!(limiter.reset(policy.key("k")).await.unwrap().is_found(), "{mode:?}");
        limiter.store().update("api", |switch| switch.mode = Mode::Enforce);
        assert!(limiter.check(policy.key("k")).await.unwrap().is_allowed(), "{mode:?}: reset");
        let _ = limiter.reset(policy.key("k")).await.unwrap();

        *fault.lock().unwrap() = Fault::Down;
        limiter.store().update("api", |switch| switch.mode = mode);
        assert!(limiter.reset(policy.key("k")).await.is_err(), "{mode:?}: nothing was reset");
        assert!(limiter.block(policy.key("k"), Duration::from_mins(1)).await.is_err(), "{mode:?}");
        *fault.lock().unwrap() = Fault::None;
    }
}

#[tokio::test(start_paused = true)]
async fn a_cost_above_the_share_is_denied_temporarily() {
    let clock = VirtualClock::new();
    let store = FaultyStore::new(clock, || Fault::Down);
    let limiter = StoreLimiter::new(Fallback::builder(store).nodes(2).clock(clock).build().unwrap());
    let policy = policy("api");
    let denied = limiter.check(policy.key("k").cost(3)).await.unwrap();
    assert_eq!((denied.is_allowed(), denied.is_never(), denied.retry_after_ms()), (false, false, Some(1000)));
    assert!(limiter.check(policy.key("k").cost(5)).await.unwrap().is_never(), "above the limit");
}

#[tokio::test(start_paused = true)]
async fn a_failing_store_gets_no_requests_and_then_a_growing_share() {
    let clock = VirtualClock::new();
    let (faulty, fault) = store(clock);
    let arrivals_ms = Arc::clone(&faulty.arrivals_ms);
    let limiter = StoreLimiter::new(Fallback::builder(faulty).clock(clock).seed(1).build().unwrap());
    let policy = Policy::parse("api", ["1000000/1s"]).unwrap();
    *fault.lock().unwrap() = Fault::BlackHole;
    for _ in 0..100 {
        assert_eq!(limiter.check(policy.key("k")).await.unwrap().source().name(), "fallback");
    }
    assert_eq!(
        arrivals_ms.lock().unwrap().len(),
        6,
        "the breaker opens after 100 ms; the other requests fall back at once"
    );
    assert_eq!(limiter.store().breaker_state(), BreakerState::Open);

    *fault.lock().unwrap() = Fault::None;
    let start = arrivals_ms.lock().unwrap().len();
    let mut shares = Vec::new();
    for _ in 0..12 {
        let before = arrivals_ms.lock().unwrap().len();
        for _ in 0..1000 {
            let _ = limiter.check(policy.key("k")).await.unwrap();
            sleep(1).await;
        }
        shares.push(arrivals_ms.lock().unwrap().len() - before);
    }
    assert!(start == 6 && shares[0] < 200, "{shares:?}");
    assert!(shares.is_sorted() && shares[11] == 1000, "{shares:?}");
    assert_eq!(limiter.store().breaker_state(), BreakerState::Closed);
}

#[tokio::test(start_paused = true)]
async fn the_budget_of_a_policy_does_not_shorten_that_of_another() {
    let clock = VirtualClock::new();
    let store = FaultyStore::new(clock, || Fault::Slow(40));
    let rule = |on_failure, ms| FailureRule::new(on_failure).budget(Duration::from_millis(ms));
    let store = Fallback::builder(store)
        .policy("search", rule(OnFailure::Open, 20))
        .policy("login", rule(OnFailure::Closed, 500))
        .clock(clock)
        .build()
        .unwrap();
    let limiter = StoreLimiter::new(store);
    let (search, login) = (policy("search"), policy("login"));
    for round in 0..20 {
        let responses =
            limiter.check_many(&[login.key("a").cost(0), search.key("a"), login.key("b").cost(0)]).await;
        let [first, searched, last] = <[_; 3]>::try_from(responses).unwrap().map(Result::unwrap);
        assert_eq!((first.source(), last.source()), (Source::Store, Source::Store), "{round}");
        assert_eq!(searched.source().name(), "fallback", "{round}");
    }
    assert_eq!(limiter.store().breaker_state_of("search"), BreakerState::Open);
    assert_eq!(limiter.store().breaker_state_of("login"), BreakerState::Closed);
}

#[tokio::test(start_paused = true)]
async fn a_connection_failure_of_many_requests_counts_as_one_failure() {
    let clock = VirtualClock::new();
    let (faulty, fault) = store(clock);
    let limiter = Arc::new(StoreLimiter::new(Fallback::builder(faulty).clock(clock).build().unwrap()));
    *fault.lock().unwrap() = Fault::Down;
    for _ in 0..50 {
        let _ = limiter.check(policy("api").key("k")).await.unwrap();
    }
    *fault.lock().unwrap() = Fault::None;
    sleep(1000).await;
    for _ in 0..50 {
        assert_eq!(limiter.check(policy("api").key("k")).await.unwrap().source(), Source::Store);
    }
}

#[tokio::test(start_paused = true)]
async fn immediate_errors_keep_the_breaker_closed() {
    let clock = VirtualClock::new();
    for fault in [Fault::Permanent, Fault::Full] {
        let store = FaultyStore::new(clock, move || fault);
        let arrivals_ms = Arc::clone(&store.arrivals_ms);
        let limiter = StoreLimiter::new(Fallback::builder(store).clock(clock).build().unwrap());
        for round in 1..=100 {
            let _ = limiter.check(policy("api").key("k")).await.unwrap();
            assert_eq!(arrivals_ms.lock().unwrap().len(), round, "{fault:?}: the store gets each request");
            // Failures within the same millisecond count as one.
            sleep(25).await;
        }
        assert_eq!(limiter.store().breaker_state(), BreakerState::Closed, "{fault:?}");
    }
}

/// A mistake of the caller is no failure of the store, so no rule for failures allows the request.
#[tokio::test(start_paused = true)]
async fn a_usage_error_passes_every_layer_and_is_no_failure() {
    let clock = VirtualClock::new();
    for on_failure in [OnFailure::Open, OnFailure::Closed, OnFailure::Local] {
        let store = FaultyStore::new(clock, || Fault::Usage);
        let store = Fallback::builder(store)
            .policy("api", FailureRule::new(on_failure))
            .clock(clock)
            .build()
            .unwrap();
        let limiter = StoreLimiter::new(Switch::new(store));
        for mode in [Mode::Enforce, Mode::Shadow] {
            limiter.store().update("api", |switch| switch.mode = mode);
            let error = limiter.check(policy("api").key("k")).await.unwrap_err();
            assert!(error.is_usage(), "{on_failure:?}, {mode:?}: {error}");
        }
        assert!(limiter.store().store().failure().is_none(), "{on_failure:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_batch_keeps_its_order_and_each_request_falls_back_separately() {
    let clock = VirtualClock::new();
    // Every third request fails.
    let requests = AtomicU8::new(0);
    let store = FaultyStore::new(clock, move || {
        if requests.fetch_add(1, Ordering::Relaxed) % 3 == 2 { Fault::Down } else { Fault::None }
    });
    let limiter = StoreLimiter::new(Fallback::builder(store).clock(clock).build().unwrap());
    let (api, login) = (policy("api"), policy("login"));
    let checks = [api.key("a"), login.key("b"), api.key("c"), api.key("a").cost(5), login.key("b")];
    let responses: Vec<_> = limiter.check_many(&checks).await.into_iter().map(Result::unwrap).collect();
    let sources: Vec<_> = responses.iter().map(|response| response.source().name()).collect();
    assert_eq!(sources, ["store", "store", "fallback", "store", "store"]);
    assert!(responses[3].is_never() && responses[4].remaining() == 2);
    assert!(limiter.check_many(&[]).await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn switches_decide_before_the_store_counts() {
    let clock = VirtualClock::new();
    let (faulty, fault) = store(clock);
    let arrivals_ms = Arc::clone(&faulty.arrivals_ms);
    let limiter = StoreLimiter::new(Switch::new(faulty));
    let (api, other) = (policy("api"), policy("other"));
    let switch = limiter.store();
    switch.update("api", |switch| {
        switch.allowed_keys.extend([b"friend".to_vec(), b"both".to_vec()]);
        switch.denied_keys.extend([b"foe".to_vec(), b"both".to_vec()]);
    });
    for (key, expected) in [("friend", true), ("foe", false), ("both", false)] {
        let decision = limiter.check(api.key(key)).await.unwrap();
        assert_eq!((decision.is_allowed(), decision.source()), (expected, Source::Rule), "{key}");
        assert_eq!(decision.is_never(), !expected);
        assert_eq!(limiter.check(other.key(key)).await.unwrap().source(), Source::Store, "{key}");
    }
    assert_eq!(arrivals_ms.lock().unwrap().len(), 3);

    switch.update("api", |switch| switch.mode = Mode::Off);
    assert_eq!(switch.of("api").mode, Mode::Off);
    for key in ["foe", "k", "k", "k", "k", "k"] {
        assert!(limiter.check(api.key(key)).await.unwrap().is_allowed(), "off");
    }
    assert_eq!(limiter.refund(api.key("k")).await.unwrap().source(), Source::Rule, "off gives nothing back");
    switch.update("api", |switch| switch.mode = Mode::Enforce);
    assert_eq!(limiter.peek(api.key("k")).await.unwrap().remaining(), 4, "nothing was counted");

    let mixed = [api.key("foe"), api.key("k"), api.key("friend"), other.key("k")];
    let responses: Vec<_> = limiter.check_many(&mixed).await.into_iter().map(Result::unwrap).collect();
    let seen: Vec<_> =
        responses.iter().map(|response| (response.is_allowed(), response.source().name())).collect();
    assert_eq!(seen, [(false, "rule"), (true, "store"), (true, "rule"), (true, "store")]);
    *fault.lock().unwrap() = Fault::Down;
    assert!(limiter.check(api.key("k")).await.is_err(), "a switch passes a store error on");
}

#[tokio::test(start_paused = true)]
async fn shadow_mode_counts_and_reports_and_denies_nothing() {
    let clock = VirtualClock::new();
    let (faulty, fault) = store(clock);
    let limiter = StoreLimiter::new(Switch::new(faulty));
    let api = policy("api");
    limiter.store().update("api", |switch| {
        switch.mode = Mode::Shadow;
        switch.denied_keys.insert(b"foe".to_vec());
    });
    for round in 0..6 {
        let decision = limiter.check(api.key("k")).await.unwrap();
        assert!(decision.is_allowed());
        assert_eq!(decision.shadow().unwrap().is_allowed(), round < 4);
    }
    assert!(limiter.check(api.key("foe")).await.unwrap().is_allowed());
    *fault.lock().unwrap() = Fault::Down;
    let undecided = limiter.check(api.key("k")).await.unwrap();
    assert_eq!(
        (undecided.is_allowed(), undecided.source()),
        (true, Source::Fallback(FallbackReason::Unavailable))
    );
    assert!(limiter.refund(api.key("k")).await.is_ok(), "a refund succeeds");
    *fault.lock().unwrap() = Fault::None;
    limiter.store().update("api", |switch| {
        switch.set_candidate("api", ["1000/10s".parse().unwrap()]).unwrap();
    });
    let decision = limiter.check(api.key("k")).await.unwrap();
    assert!(!decision.shadow().unwrap().is_allowed(), "the policy's own decision, not the candidate's");
}

#[tokio::test(start_paused = true)]
async fn a_candidate_is_decided_separately_and_leaves_the_policy_unchanged() {
    let clock = VirtualClock::new();
    let (faulty, _) = store(clock);
    let limiter = StoreLimiter::new(Switch::new(faulty));
    let api = policy("api");
    limiter.store().update("api", |switch| {
        switch.set_candidate("api", ["2/10s strict-window".parse().unwrap()]).unwrap();
    });
    let mut seen = Vec::new();
    for _ in 0..3 {
        let decision = limiter.check(api.key("k")).await.unwrap();
        seen.push((decision.is_allowed(), decision.shadow().unwrap().is_allowed()));
    }
    let batch = limiter.check_many(&[api.key("k"), api.key("k"), api.key("new")]).await;
    for response in batch.into_iter().map(Result::unwrap) {
        seen.push((response.is_allowed(), response.shadow().unwrap().is_allowed()));
    }
    let expected = [(true, true), (true, true), (true, false), (true, false), (false, false), (true, true)];
    assert_eq!(seen, expected);
    let _ = limiter.reset(api.key("k")).await.unwrap();
    assert!(
        limiter.check(api.key("k")).await.unwrap().shadow().unwrap().is_allowed(),
        "a reset includes the candidate"
    );
    assert!(!limiter.check(api.key("k").cost(2)).await.unwrap().shadow().unwrap().is_allowed());
    assert!(limiter.forget(&api).await.is_ok());
    let both = limiter.peek(api.key("k")).await.unwrap();
    assert!(
        both.is_allowed() && both.shadow().unwrap().is_allowed(),
        "the candidate's counts are forgotten too"
    );
    limiter.store().update("api", PolicySwitch::clear_candidate);
    assert!(limiter.check(api.key("k")).await.unwrap().shadow().is_none());
    assert_eq!(limiter.store().store().clock().now_ms(), clock.now_ms());
}

#[tokio::test(start_paused = true)]
async fn a_forget_clears_the_local_share_after_the_store_confirms() {
    let clock = VirtualClock::new();
    let (store, fault) = store(clock);
    let store = Fallback::builder(store).clock(clock).nodes(1).build().unwrap();
    let limiter = StoreLimiter::new(store);
    let policy = policy("api");
    let set = |to: Fault| *fault.lock().unwrap() = to;
    assert!(limiter.check(policy.key("k").cost(4)).await.unwrap().is_allowed());
    set(Fault::Down);
    assert!(limiter.forget(&policy).await.is_err());
    assert!(!limiter.check(policy.key("k")).await.unwrap().is_allowed(), "nothing was forgotten");
    // Slower than the budget of a decision.
    set(Fault::Slow(1000));
    limiter.forget(&policy).await.unwrap();
    set(Fault::Down);
    let decision = limiter.check(policy.key("k").cost(4)).await.unwrap();
    assert!(decision.is_allowed() && decision.source().reason().is_some());
}
