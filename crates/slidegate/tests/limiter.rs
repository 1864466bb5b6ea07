//! A limiter of one policy: the fast path, tiers, batches, shared stores, remote stores.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::sync::Arc;
use std::time::Duration;

use slidegate::store::{AnyClock, MemoryStore, Operation, Store, StoreLimiter, StoreUrl};
use slidegate::{
    Check, Decision, Limiter, LimiterBuilder, ManualClock, Policy, QuotaError, Request, StoreError,
    StoreStack, Verb,
};

const NOW: u64 = 1_800_000_000_123;

fn builder(clock: &ManualClock) -> LimiterBuilder {
    Limiter::builder("api").max_keys(1000).clock(clock.clone())
}

fn memory(limiter: &Limiter) -> &MemoryStore<AnyClock> {
    limiter.store().base().memory().unwrap()
}

/// Checks without the limiter's fast path, on the same counts.
fn check_unbound(limiter: &Limiter, check: Check<'_>) -> Result<Decision, StoreError> {
    memory(limiter).execute_now(Operation::new(Verb::Check, check))
}

/// A limiter of one policy and a limiter for any policy return the same decisions for all policies and keys.
#[test]
fn a_limiter_counts_the_same_as_its_store() {
    let policies = [
        vec!["3/1m"],
        vec!["3/1m anchor=first-request"],
        vec!["1000000000/1h"],
        vec!["281474976710656/1h"],
        vec!["3/1m fixed-window"],
        vec!["3/1m token-bucket"],
        vec!["3/1m", "5/1h"],
    ];
    for quotas in policies {
        let clock = ManualClock::at(NOW);
        let policy = Policy::parse("api", quotas.iter().copied()).unwrap();
        let store = MemoryStore::builder().max_keys(100).clock(clock.clone()).build().unwrap();
        let (alone, limiter) =
            (StoreLimiter::new(store), builder(&clock).quotas(quotas.iter().copied()).in_memory().unwrap());
        for key in ["", "a", "user", "user:000001", "a key of more than sixteen bytes"] {
            for step in 0..40_u64 {
                clock.advance(7_001 * (step % 5));
                let cost = 1 + step % 2;
                let expected = alone.check_now(policy.key(key).cost(cost)).unwrap();
                // Alternates between both paths: they share the counts of a key.
                let decision = if step % 3 == 0 {
                    check_unbound(&limiter, policy.key(key).cost(cost))
                } else {
                    limiter.check_now(Request::key(key).cost(cost))
                };
                assert_eq!(decision.unwrap(), expected, "{quotas:?}, {key:?}, step {step}");
            }
        }
        assert_eq!(limiter.check_now("new").unwrap(), alone.check_now(policy.key("new")).unwrap());
        assert_eq!(limiter.policy(), &policy);
        assert!(Arc::ptr_eq(limiter.store(), limiter.clone().store()));
    }
}

/// More keys than one prefetch group, some of them repeated, some denied.
#[test]
fn many_keys_at_once_count_as_one_by_one() {
    for quota in ["3/1m", "1000000000/1h", "3/1m fixed-window", "3/1m token-bucket", "3/1m strict-window"] {
        let clock = ManualClock::at(NOW);
        let [alone, each, many] = [(); 3].map(|()| builder(&clock).quotas([quota]).in_memory().unwrap());
        let keys: Vec<String> = (0..150).map(|number| format!("user:{}", number * number % 37)).collect();
        for _ in 0..3 {
            clock.advance(25_000);
            let mut decisions = Vec::new();
            each.check_each_now(&keys, |key, decision| decisions.push((key, decision.unwrap())));
            let expected: Vec<_> = keys.iter().map(|key| (key, alone.check_now(key).unwrap())).collect();
            assert_eq!(decisions, expected, "{quota}");
            let decisions = many.check_many_now(&keys).into_iter().map(Result::unwrap);
            assert!(decisions.eq(expected.into_iter().map(|(_, decision)| decision)), "{quota}");
        }
        each.check_each_now(&[""; 0], |key, _| panic!("unexpected key {key:?}"));
    }
}

/// A limiter holds a hasher that depends on the policy's salt, and a forget changes the salt.
#[test]
fn a_limiter_follows_a_forget_of_its_policy() {
    for quota in ["3/1m", "1000000000/1h", "3/1m fixed-window", "3/1m token-bucket", "3/1m strict-window"] {
        let store = StoreStack::builder().max_keys(1000).clock(ManualClock::at(NOW)).in_memory().unwrap();
        let store = Arc::new(store);
        let limiter = |name| Limiter::over(store.clone(), Policy::parse(name, [quota]).unwrap());
        let (api, other) = (limiter("api"), limiter("other"));
        let used = |limiter: &Limiter, key: &str| limiter.peek_now(key).unwrap().quotas()[0].used;
        for round in 1..=3 {
            for key in ["a", "a key of more than sixteen bytes"] {
                let spend =
                    |limiter: &Limiter, cost| limiter.check_now(Request::key(key).cost(cost)).unwrap();
                assert!(spend(&api, 2).is_allowed(), "{quota}, round {round}");
                assert!(spend(&other, u64::from(round == 1)).is_allowed());
                assert_eq!([used(&api, key), used(&other, key)], [2, 1], "{quota}, round {round}");
            }
            api.forget_now().unwrap();
            // A new limiter shares the counts with the old one.
            let again = limiter("api");
            assert!(again.check_now("b").unwrap().is_allowed() && api.check_now("b").unwrap().is_allowed());
            assert_eq!(used(&api, "b"), 2);
            assert_eq!([used(&api, "a"), used(&other, "a")], [0, 1], "{quota}, round {round}");
            api.check_each_now(&["c"; 3], |_, decision| assert!(decision.unwrap().is_allowed()));
            again.check_each_now(&["c"; 1], |_, decision| {
                assert_eq!(decision.unwrap().is_allowed(), quota.starts_with("1000"));
            });
            again.forget_now().unwrap();
        }
    }
}

#[test]
fn a_tier_has_its_own_quotas_and_the_counts_of_the_policy() {
    let clock = ManualClock::at(NOW);
    let limiter = builder(&clock).quotas(["2/1m"]).tier("premium", ["5/1m"]).tier("basic", ["3/1m"]);
    let limiter = limiter.in_memory().unwrap();
    assert_eq!(limiter.tiers(), ["basic", "premium"]);
    assert_eq!(limiter.tier_policy("premium").unwrap().quota_name(0), "5/1m");
    assert_eq!(limiter.check_now(Request::key("a").cost(2)).unwrap().remaining(), 0);
    let premium = Request::key("a").tier("premium");
    assert_eq!(limiter.check_now(premium).unwrap().remaining(), 2, "the key keeps its count");
    assert!(!limiter.check_now("a").unwrap().is_allowed());
    assert_eq!(limiter.check_many_now([premium, "b".into()])[0].as_ref().unwrap().remaining(), 1);
}

#[test]
fn an_unknown_tier_is_a_usage_error_with_the_known_ones() {
    let clock = ManualClock::at(NOW);
    let limiter = builder(&clock).quotas(["2/1m"]).tier("premium", ["5/1m"]).tier("basic", ["3/1m"]);
    let limiter = limiter.in_memory().unwrap();
    let gold = Request::key("a").tier("gold");
    let many = limiter.check_many_now([Request::key("a"), gold, Request::key("a")]);
    let errors = [
        limiter.check_now(gold).unwrap_err(),
        limiter.peek_now(gold).unwrap_err(),
        many[1].clone().unwrap_err(),
    ];
    for error in errors {
        assert_eq!(error.to_string(), "the policy \"api\" has no tier \"gold\"; known: basic, premium");
        assert!(error.is_usage() && !error.is_transient() && !error.may_have_counted());
    }
    assert_eq!(many[2].as_ref().unwrap().remaining(), 0, "the other requests of the batch are decided");
    let without = builder(&clock).quotas(["2/1m"]).in_memory().unwrap();
    let error = without.check_now(gold).unwrap_err();
    assert_eq!(error.to_string(), "the policy \"api\" has no tier \"gold\"; it has no tiers");
}

#[tokio::test]
async fn every_verb_has_two_forms_with_the_same_decision() {
    let clock = ManualClock::at(NOW);
    let [waiting, now] = [(); 2].map(|()| builder(&clock).quotas(["3/1m", "9/1h"]).in_memory().unwrap());
    let cost = |cost| Request::key(b"a").cost(cost);
    assert_eq!(waiting.check(cost(2)).await, now.check_now(cost(2)));
    assert_eq!(waiting.peek("a").await, now.peek_now("a"));
    assert_eq!(waiting.charge(cost(3)).await, now.charge_now(cost(3)));
    assert_eq!(waiting.check("a").await, now.check_now("a"));
    assert_eq!(waiting.refund(cost(1)).await, now.refund_now(cost(1)));
    let span = Duration::from_micros(1_500);
    assert_eq!(waiting.block("b", span).await, now.block_now("b", span));
    let blocked = waiting.check("b").await.unwrap();
    assert_eq!(blocked.retry_after(), Some(Duration::from_millis(2)), "rounded up");
    assert_eq!(Ok(blocked), now.check_now("b"));
    assert_eq!(waiting.reset("a").await, now.reset_now("a"));
    assert_eq!(waiting.check_many(["a", "b", "a"]).await, now.check_many_now(["a", "b", "a"]));
    assert_eq!((waiting.forget().await, now.forget_now()), (Ok(None), Ok(None)));
    assert_eq!(waiting.peek("a").await.unwrap().remaining(), 3);
}

#[tokio::test]
async fn a_wait_ends_when_the_request_is_allowed() {
    let clock = ManualClock::at(NOW);
    let limiter = builder(&clock).quotas(["2/1s sliding-log"]).in_memory().unwrap();
    assert!(limiter.wait(Request::key("a").cost(2), Duration::ZERO).await.unwrap().is_allowed());
    let denied = limiter.wait("a", Duration::from_millis(999)).await.unwrap();
    assert_eq!((denied.retry_after(), clock.sleepers()), (Some(Duration::from_secs(1)), 0));
    let waiting = {
        let limiter = limiter.clone();
        tokio::spawn(async move { limiter.wait("a", Duration::from_secs(1)).await })
    };
    while clock.sleepers() == 0 {
        tokio::task::yield_now().await;
    }
    clock.advance(1000);
    assert!(waiting.await.unwrap().unwrap().is_allowed());
    let error = limiter.wait(Request::key("a").tier("gold"), Duration::ZERO).await.unwrap_err();
    assert!(error.to_string().contains("no tier"));
}

/// The futures of a store's layers are not part of the caller's future, whose type would exceed the compiler's limit.
#[tokio::test]
async fn a_caller_can_nest_many_async_blocks() {
    macro_rules! nest {
        ($future:expr;) => { $future };
        ($future:expr; $level:tt $($levels:tt)*) => { nest!(async { $future.await }; $($levels)*) };
    }
    let limiter = Limiter::connect("memory:", "api", ["9/1m"]).await.unwrap();
    let nested = nest!(limiter.check("a"); 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20);
    assert_eq!(nested.await.unwrap().remaining(), 8);
}

#[test]
fn invalid_settings_are_rejected_with_the_field() {
    let clock = ManualClock::at(NOW);
    let error = |limiter: Result<Limiter, slidegate::BuildError>| {
        let error = limiter.unwrap_err();
        let source = std::error::Error::source(&error).unwrap().to_string();
        assert!(error.to_string().contains(&source), "{error}: {source}");
        error.to_string()
    };
    assert!(error(Limiter::in_memory("api", ["10"])).starts_with("quota: \"10\" is not a quota"));
    assert!(error(Limiter::in_memory("", ["1/1s"])).starts_with("policy: a name has 1 to 256 bytes"));
    assert!(error(builder(&clock).in_memory()).starts_with("quotas: none given"));
    let tier = builder(&clock).quotas(["1/1s"]).tier("gold", ["x"]);
    assert!(error(tier.clone().in_memory()).starts_with("tier \"gold\": quota: \"x\" is not a quota"));
    let error_of_tier = tier.in_memory().unwrap_err();
    assert!(std::error::Error::source(&error_of_tier).unwrap().is::<QuotaError>());
    let named = builder(&clock).named_quotas([("a", "1/1s"), ("b", "x")]);
    assert!(error(named.in_memory()).starts_with("quota: \"x\" is not a quota"));
    assert!(
        error(builder(&clock).quotas(["1/1s"]).max_keys(0).in_memory()).starts_with("max_keys: 0 is not")
    );
    let store = Arc::new(StoreStack::builder().max_keys(100).in_memory().unwrap());
    assert!(
        error(builder(&clock).quotas(["1/1s"]).over(store.clone()))
            .starts_with("store: options of a shared store")
    );
    let quota: slidegate::Quota = "1/1s".parse().unwrap();
    assert!(Limiter::builder("typed").quotas([quota]).over(store.clone()).is_ok());
    assert!(Limiter::builder("owned").quotas(["1/1s".to_owned()]).over(store.clone()).is_ok());
}

/// The sizes and the clock are separate settings: neither replaces the other, in any order.
#[tokio::test]
async fn the_sizes_of_a_memory_store_keep_its_clock() {
    let clock = ManualClock::at(NOW);
    let sizes = || MemoryStore::builder().max_keys(1000);
    let builder = StoreStack::builder;
    for builder in [builder().clock(clock.clone()).memory(sizes()), builder().memory(sizes()).clock(clock)] {
        assert_eq!(builder.clone().in_memory().unwrap().clock().now_ms(), NOW);
        #[cfg(feature = "redis")]
        {
            let error = builder.connect("redis://127.0.0.1:1").await.unwrap_err();
            assert!(
                error.to_string().starts_with("clock: redis://127.0.0.1:1 decides by the clock"),
                "{error}"
            );
        }
    }
}

#[tokio::test]
async fn a_url_chooses_the_store() {
    let api = Limiter::connect("memory:", "api", ["2/1m"]).await.unwrap();
    assert_eq!(api.check("a").await.unwrap().remaining(), 1);
    assert_eq!(api.check_now("a").unwrap().remaining(), 0);
    let api = Limiter::builder("api").quotas(["2/1m"]).connect_to(&StoreUrl::Memory).await.unwrap();
    assert_eq!(api.check_now("a").unwrap().remaining(), 1);
    let error = Limiter::connect("disk", "api", ["2/1m"]).await.unwrap_err();
    assert!(error.to_string().starts_with("not a store; write memory:, redis://"), "{error}");
}

#[cfg(feature = "resilience")]
mod layers {
    use slidegate::resilience::{Mode, PolicySwitch};

    use super::*;

    #[test]
    fn a_switch_changes_a_synchronous_limiter_at_run_time() {
        let clock = ManualClock::at(NOW);
        let limiter = builder(&clock).quotas(["1/1m"]).switch(PolicySwitch::default()).in_memory().unwrap();
        let is_allowed = || limiter.check_now("a").unwrap().is_allowed();
        assert_eq!([is_allowed(), is_allowed()], [true, false]);
        limiter.store().switches().unwrap().update("api", |switch| switch.mode = Mode::Off);
        assert!(is_allowed());
        assert_eq!(limiter.store().switch_of("api").mode, Mode::Off);
        assert!(limiter.store().fallback().is_none() && limiter.store().denied_cache().is_none());
        let many = limiter.check_many_now(["a", "a"]);
        assert!(many.iter().all(|decision| decision.as_ref().unwrap().is_allowed()));
        limiter.check_each_now(&["a"; 3], |_, decision| assert!(decision.unwrap().is_allowed()));
        limiter.forget_now().unwrap();
    }

    #[test]
    fn jitter_delays_the_retry_times_of_a_synchronous_limiter() {
        let limiter = builder(&ManualClock::at(0)).quotas(["1/1s fixed-window"]);
        let limiter = limiter.retry_jitter(Duration::from_millis(250)).in_memory().unwrap();
        assert!(limiter.check_now("a").unwrap().is_allowed());
        let retry = limiter.check_now("a").unwrap().retry_after_ms().unwrap();
        assert!((1000..=1250).contains(&retry), "{retry}");
    }

    /// No server listens at this address.
    #[cfg(feature = "redis")]
    #[tokio::test]
    async fn a_remote_limiter_falls_back_and_has_no_synchronous_verbs() {
        let url = "redis://127.0.0.1:1?budget_ms=50";
        let error = Limiter::connect(url, "api", ["2/1m"]).await.unwrap_err();
        assert!(
            error.to_string().starts_with("cannot connect to the store redis://127.0.0.1:1: "),
            "{error}"
        );
        let limiter = Limiter::builder("api").quotas(["2/1m"]).nodes(2).cache_denials(true);
        let clocked = limiter.clone().clock(ManualClock::at(NOW)).connect(url).await.unwrap_err();
        assert!(
            clocked.to_string().starts_with("clock: redis://127.0.0.1:1 decides by the clock"),
            "{clocked}"
        );
        let limiter = limiter.connect_in_background().connect(url).await.unwrap();
        let decision = limiter.check("a").await.unwrap();
        assert_eq!((decision.source().name(), decision.remaining()), ("fallback", 0), "a half of the limit");
        assert!(limiter.store().fallback().is_some_and(|fallback| fallback.failure().is_some()));
        let error = limiter.check_now("a").unwrap_err();
        assert_eq!(
            error.to_string(),
            "`check_now` never waits and needs a store in memory; over a remote store use `check(…).await`"
        );
        assert!(error.is_usage() && !error.is_transient());
        for error in [limiter.peek_now("a").unwrap_err(), limiter.block_now("a", Duration::ZERO).unwrap_err()]
        {
            assert!(error.to_string().contains("over a remote store use `"), "{error}");
        }
        assert!(limiter.forget_now().unwrap_err().to_string().contains("use `forget(…).await`"));
        assert!(limiter.check_many_now(["a"])[0].as_ref().unwrap_err().to_string().contains("check_many"));
    }
}
