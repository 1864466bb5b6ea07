//! Jitter on retry times, also of cached denials, and per policy.

use std::collections::HashSet;
use std::time::Duration;

use slidegate::resilience::{DeniedCache, Jitter};
use slidegate::store::{Operation, Store};
use slidegate::{ManualClock, Policy, Source, Verb};

use crate::resilience_traces::{START, at_once, memory};
use crate::{cache, check, policy};

fn jittered_ms(seed: u64, max_ms: u64) -> Vec<u64> {
    let clock = ManualClock::at(START);
    let jitter = Jitter::new(memory(&clock), Duration::from_millis(max_ms)).with_seed(seed);
    let policy = policy();
    assert_eq!(check(&jitter, policy.key("a").cost(5)), check(&memory(&clock), policy.key("a").cost(5)));
    let deny = Operation::new(Verb::Check, policy.key("a"));
    let one_by_one = (0..100).map(|_| check(&jitter, deny.check));
    let together = at_once(jitter.execute(&[deny; 100])).into_iter().map(Result::unwrap);
    one_by_one.chain(together).map(|denied| denied.retry_after_ms().unwrap()).collect()
}

#[test]
fn jitter_adds_at_most_its_maximum() {
    let waits = jittered_ms(1, 20);
    assert!(waits.iter().all(|ms| (1000..=1020).contains(ms)), "{waits:?}");
    assert_eq!(waits.iter().collect::<HashSet<_>>().len(), 21, "each of them is possible");
    assert_eq!(jittered_ms(1, 20), waits);
    assert_ne!(jittered_ms(2, 20), waits);
    assert!(jittered_ms(1, 0).iter().all(|ms| *ms == 1000));
    let jitter = Jitter::new(memory(&ManualClock::at(START)), Duration::MAX);
    assert!(check(&jitter, policy().key("a").cost(6)).is_never());
}

/// Jitter wraps the cache, which keeps exact times.
#[test]
fn jitter_applies_to_cached_denials() {
    let clock = ManualClock::at(START);
    let jitter = Jitter::new(cache(memory(&clock), &clock, 900), Duration::from_millis(20)).with_seed(1);
    let policy = policy();
    let _ = check(&jitter, policy.key("a").cost(5));
    let _ = check(&jitter, policy.key("a"));
    let retries_ms: HashSet<_> = (0..100)
        .map(|_| check(&jitter, policy.key("a")))
        .map(|denied| {
            assert_eq!(denied.source(), Source::Cache);
            denied.retry_after_ms().unwrap()
        })
        .collect();
    assert!(retries_ms.len() > 1 && retries_ms.iter().all(|ms| (1000..=1020).contains(ms)));
}

#[test]
fn caching_and_jitter_are_set_per_policy() {
    let clock = ManualClock::at(START);
    let [login, search, other] =
        ["login", "search", "other"].map(|name| Policy::parse(name, ["1/1s fixed-window"]).unwrap());
    for (others, expected) in [(true, Source::Cache), (false, Source::Store)] {
        let builder = DeniedCache::builder(memory(&clock)).clock(clock.clone());
        let cache = builder.other_policies(others).policy("login", false).policy("search", true);
        let jitter = Jitter::new(cache.build().unwrap(), Duration::ZERO);
        let jitter = jitter.policy("login", Duration::from_hours(1)).with_seed(1);
        for (policy, source) in [(&login, Source::Store), (&search, Source::Cache), (&other, expected)] {
            assert!(check(&jitter, policy.key("a")).is_allowed());
            let first = check(&jitter, policy.key("a"));
            assert_eq!(first.source(), Source::Store);
            assert_eq!(check(&jitter, policy.key("a")).source(), source, "{}", policy.name());
            let has_jitter = first.retry_after_ms() > Some(1000);
            assert_eq!(has_jitter, policy.name() == "login", "{}: {first:?}", policy.name());
        }
        let many = [&login, &search].map(|policy| Operation::new(Verb::Check, policy.key("a")));
        let waits =
            at_once(jitter.execute(&many)).into_iter().map(|response| response.unwrap().retry_after_ms());
        assert!(waits.collect::<Vec<_>>()[0] > Some(1000));
    }
}
