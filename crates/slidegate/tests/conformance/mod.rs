//! Conformance suite of all stores. A store joins with one constructor:
//!
//! ```ignore
//! conformance::suite!(Subject { store: …, set_now: Box::new(|now_ms| …), effort: 100 });
//! ```

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod merging;
#[path = "../../../slidegate-core/tests/model/mod.rs"]
mod model;
mod traces;

pub(crate) use merging::{
    fewer_slots_merge_nothing_until_units_are_added, strict_windows_merge_up_to_their_bounds,
};
pub(crate) use traces::{
    a_bucket_in_use_fills_in_time_despite_other_versions, a_count_survives_other_tiers,
    a_lowered_bucket_fills_in_time, a_refund_applies_to_every_version,
    an_empty_count_hides_no_other_after_a_step_back, decides_like_the_oracle,
};

use std::collections::HashMap;
use std::time::Duration;

use slidegate::store::{Operation, Store, StoreLimiter};
use slidegate::{Algorithm, Anchor, Check, Decision, MAX_LIMIT, MAX_WINDOW_MS, Policy, Quota, Verb};
use slidegate_core::{Action, Moment, State, decide};

/// A store whose time the test sets.
pub(crate) struct Subject<S> {
    pub(crate) store: S,
    pub(crate) set_now: Box<dyn Fn(u64) + Send + Sync>,
    /// Percentage of the seeded traces that are run. A remote store takes a round trip per step.
    pub(crate) effort: u64,
}

/// An arbitrary time within windows of all lengths.
pub(crate) const START: u64 = 1_800_000_012_345;

/// A small random number generator with a fixed seed, so that failures are reproducible.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }

    /// Returns a number from 1 to 2^`bits`, each magnitude equally likely.
    fn of_any_size(&mut self, bits: u64) -> u64 {
        let magnitude = 1 + self.below(bits);
        1 + self.below(1 << magnitude)
    }

    pub(crate) fn pick<'a, T>(&mut self, list: &'a [T]) -> &'a T {
        &list[usize::try_from(self.below(list.len() as u64)).unwrap()]
    }
}

/// The core's decisions, with all states in a map.
#[derive(Default)]
pub(crate) struct Reference(HashMap<(String, Vec<u8>), Vec<State>>);

impl Reference {
    pub(crate) fn execute(&mut self, operation: &Operation<'_>, now_ms: u64) -> Decision {
        self.execute_at(operation, Moment::exact(now_ms))
    }

    fn execute_at(&mut self, operation: &Operation<'_>, moment: Moment) -> Decision {
        let Operation { verb, check: Check { policy, key, cost, .. }, .. } = *operation;
        let states = self.0.entry((policy.name().to_owned(), key.to_vec())).or_default();
        decide(states, policy, Action::at(verb, moment, cost)).0
    }

    /// Returns the time until the trace's key counts nothing under the policy.
    fn reset_after_ms_of(&mut self, policy: &Policy, now_ms: u64) -> u64 {
        let peek = Operation::new(Verb::Peek, policy.key("k"));
        self.execute(&peek, now_ms).quotas().iter().map(|quota| quota.reset_after_ms).max().unwrap_or(0)
    }
}

/// Policies that cover all algorithms, several quotas, extremes, and one whose quotas change.
pub(crate) fn policies() -> Vec<Policy> {
    let parse = |name: &str, quotas: &[&str]| Policy::parse(name, quotas.iter().copied()).unwrap();
    let mut policies: Vec<Policy> = Algorithm::ALL
        .iter()
        .map(|algorithm| parse(algorithm.name(), &[&format!("10/1s {algorithm}")]))
        .collect();
    policies.extend([
        parse("anchored", &["7/900ms anchor=first-request"]),
        parse("anchored fixed", &["7/900ms fixed-window anchor=first-request"]),
        parse("burst", &["5/1s token-bucket burst=20"]),
        parse("large", &["200000/1s"]),
        parse("widest", &["281474976710656/366d"]),
        parse("two", &["5/1s", "20/1m"]),
        parse("nothing", &["0/1s"]),
        parse("nothing of several", &["5/1s token-bucket", "0/1s token-bucket"]),
        parse(
            "all",
            &["9/1s", "12/2s strict-window", "14/3s sliding-log", "16/4s fixed-window", "18/5s token-bucket"],
        ),
        parse("changing", &["10/1s"]),
        parse("changing", &["5/1s"]),
        parse("changing", &["100000/1s"]),
        parse("changing", &["10/3s"]),
        parse("changing", &["10/1s", "12/3s"]),
        parse("changing", &["10/1s strict-window"]),
        parse("changing", &["8/2s token-bucket"]),
        parse("changing", &["80/2s token-bucket burst=9"]),
        parse("changing", &["10/1s strict-window", "12/2s strict-window"]),
        parse("changing", &["9/4s sliding-log", "7/1s fixed-window"]),
        parse("changing", &["7/1s fixed-window", "8/1s token-bucket", "6/5s"]),
    ]);
    policies
}

pub(crate) fn operation<'a>(
    random: &mut Random,
    policies: &'a [Policy],
    keys: &'a [String],
) -> Operation<'a> {
    let verb = match random.below(40) {
        0..=1 => Verb::Reset,
        2..=5 => Verb::Refund,
        6..=10 => Verb::Peek,
        11..=12 => Verb::Charge,
        13 => Verb::Block,
        _ => Verb::Check,
    };
    let policy = random.pick(policies);
    let cost = match random.below(12) {
        0 => 0,
        1..=6 if verb == Verb::Block => random.below(3000),
        1..=3 => random.below(8),
        4 => random.below(1 << 49),
        _ => 1,
    };
    Operation::new(verb, policy.key(random.pick(keys)).cost(cost))
}

/// A long seeded trace of all operations on few keys: all decisions equal the core's.
pub(crate) async fn decides_like_the_core<S: Store>(subject: Subject<S>) {
    decides_like_the_core_within(subject, 0).await;
}

/// Like [`decides_like_the_core`], for a store whose clock may lag by `grain_ms`.
pub(crate) async fn decides_like_the_core_within<S: Store>(subject: Subject<S>, grain_ms: u64) {
    let (policies, keys) =
        (policies(), ["a", "b", "", "a rather long key, longer than sixteen bytes"].map(String::from));
    for seed in 1..=subject.effort {
        let mut random = Random(0x9E37_79B9_7F4A_7C15_u64.wrapping_mul(seed));
        let mut reference = Reference::default();
        let mut now_ms = START + seed * 1_000_000_000;
        for step in 0..1000 {
            now_ms += *random.pick(&[0, 0, 0, 1, 10, 137, 500, 4000]);
            if random.below(8) == 0 {
                // To a window boundary, or just before it.
                now_ms = (now_ms / 1000 + 1 + random.below(3)) * 1000 - random.below(2);
            }
            (subject.set_now)(now_ms);
            let operation = operation(&mut random, &policies, &keys);
            let expected = reference.execute_at(&operation, Moment::with_grain(now_ms, grain_ms));
            let response = subject.store.execute(&[operation]).await.into_single().unwrap();
            assert_eq!(response, expected, "seed {seed}, step {step}: {operation:?} at {now_ms}");
        }
        for (policy, key) in policies.iter().flat_map(|policy| keys.iter().map(move |key| (policy, key))) {
            let _ = subject
                .store
                .execute(&[Operation::new(Verb::Reset, policy.key(key))])
                .await
                .into_single()
                .unwrap();
        }
    }
}

/// Quotas of all sizes and kinds, changed during the trace, on a clock that advances by fractions of their windows and
/// sometimes steps back. Covers products beyond 2^53 and 2^64.
pub(crate) async fn decides_like_the_core_at_the_extremes<S: Store>(subject: Subject<S>) {
    for seed in 1..=12 * subject.effort {
        let mut random = Random(0xD1B5_4A32_D192_ED03_u64.wrapping_mul(seed));
        let mut reference = Reference::default();
        let name = format!("extreme {seed}");
        let mut policy = extreme_policy(&mut random, &name);
        let mut now_ms = START;
        for step in 0..80 {
            // A store may drop an expired count, so the clock must not step back before its expiry.
            let is_live = reference.reset_after_ms_of(&policy, now_ms) > 0;
            let is_changing = random.below(12) == 0 && is_live;
            if is_changing {
                policy = extreme_policy(&mut random, &name);
            }
            let quota = *random.pick(policy.quotas());
            now_ms = match random.below(20) {
                // A record gets its longer lifetime with the next check.
                _ if is_changing => now_ms,
                0 if is_live => now_ms.saturating_sub(quota.window_ms() / 3).max(START / 2),
                1 if is_live => now_ms.saturating_sub(3 * quota.window_ms()).max(START / 2),
                2..=7 => now_ms,
                8..=9 => now_ms + 1,
                10..=11 => {
                    let windows = now_ms / quota.window_ms() + 1 + random.below(2);
                    windows * quota.window_ms() - random.below(2)
                }
                _ => now_ms + random.below(quota.window_ms()) / (1 << random.below(8)),
            };
            let cost = match random.below(10) {
                0 => quota.capacity(),
                1 => quota.capacity() + 1,
                2 => u64::MAX,
                3..=4 => 1,
                _ => random.below(quota.capacity()) >> random.below(6),
            };
            let verb = match random.below(16) {
                _ if is_changing => Verb::Check,
                0 => Verb::Peek,
                1 => Verb::Refund,
                2 if random.below(4) == 0 => Verb::Reset,
                _ => Verb::Check,
            };
            (subject.set_now)(now_ms);
            let operation = Operation::new(verb, policy.key("k").cost(cost));
            let expected = reference.execute(&operation, now_ms);
            let response = subject.store.execute(&[operation]).await.into_single().unwrap();
            assert_eq!(response, expected, "seed {seed}, step {step}: {operation:?} at {now_ms}");
        }
    }
}

/// Counts and windows around the sizes at which a store may change the form of a counter.
pub(crate) async fn counter_forms_change_without_a_difference<S: Store>(subject: Subject<S>) {
    let mut random = Random(0x5DEE_CE66_D123_4567);
    let mut reference = Reference::default();
    let quotas = [
        (1 << 16, "200000/1s"),
        (1 << 16, "200000/16777215s"),
        (1 << 16, "200000/16777216s"),
        (1 << 16, "200000/1s strict-window"),
        (1 << 16, "65535/1s"),
        (1 << 16, "65536/1s"),
        (10_000, "60000/1m"),
        (10_000, "9999/1m"),
        (10_000, "10000/1m"),
        (10_000, "10001/1m"),
    ];
    for (number, (threshold, quota)) in quotas.into_iter().enumerate() {
        let policy = Policy::parse(&number.to_string(), [quota]).unwrap();
        // Each quota starts at the same time: the longest windows exceed the range of the shortest form.
        let mut now_ms = START;
        for step in 0..400 {
            now_ms += policy.quotas()[0].window_ms() / 4 * *random.pick(&[0, 0, 0, 0, 1, 4, 8]);
            (subject.set_now)(now_ms);
            let used =
                reference.execute(&Operation::new(Verb::Peek, policy.key("k")), now_ms).quotas()[0].used;
            // To just below, at and just above the threshold, or by one.
            let cost = match random.below(3) {
                0 => (threshold - 2 + random.below(4)).saturating_sub(used),
                1 => threshold - 2 + random.below(4),
                _ => 1,
            };
            let operation = Operation::new(Verb::Check, policy.key("k").cost(cost));
            let expected = reference.execute(&operation, now_ms);
            let response = subject.store.execute(&[operation]).await.into_single().unwrap();
            assert_eq!(response, expected, "step {step}: {operation:?} at {now_ms}");
        }
    }
}

/// Returns a policy of one to three quotas with limits and windows of any magnitude.
fn extreme_policy(random: &mut Random, name: &str) -> Policy {
    let quotas = (0..=random.below(3)).map(|number| {
        let limit = random.of_any_size(48).min(MAX_LIMIT - random.below(2));
        let window_ms = random.of_any_size(35).min(MAX_WINDOW_MS);
        // Windows of whole seconds have another form.
        let window_ms =
            if window_ms > 2000 && random.below(2) == 0 { window_ms / 1000 * 1000 } else { window_ms };
        let quota = Quota::new(limit, Duration::from_millis(window_ms)).unwrap();
        let quota = quota.with_algorithm(*random.pick(Algorithm::ALL));
        let quota = match (quota.algorithm(), random.below(2)) {
            (Algorithm::TokenBucket, 0) => quota.with_burst(random.of_any_size(47)),
            (Algorithm::StrictWindow, 0) => quota.with_slots(4 + 2 * random.below(5)),
            (Algorithm::SlidingWindow | Algorithm::FixedWindow, 0) => quota.with_anchor(Anchor::FirstRequest),
            _ => Ok(quota),
        };
        (number.to_string(), quota.unwrap())
    });
    Policy::with_names(name, quotas).unwrap()
}

/// The clock steps back, a little or a lot, while the key counts something.
pub(crate) async fn decides_like_the_core_when_the_clock_steps_back<S: Store>(subject: Subject<S>) {
    let policies = policies();
    for (number, policy) in policies.iter().enumerate() {
        let mut random = Random(77 + number as u64);
        let mut reference = Reference::default();
        let key = format!("key {number}");
        let mut now_ms = START + number as u64 * 1_000_000_000;
        for step in 0..300 {
            let peek = Operation::new(Verb::Peek, policy.key(&key));
            let is_live = reference.execute(&peek, now_ms).quotas().iter().any(|quota| quota.used > 0);
            now_ms = match random.below(8) {
                0 if is_live => now_ms - random.below(900),
                1 if is_live => now_ms - 30_000 - random.below(100_000),
                _ => now_ms + random.below(300),
            };
            (subject.set_now)(now_ms);
            let operation = operation(&mut random, std::slice::from_ref(policy), std::slice::from_ref(&key));
            let expected = reference.execute(&operation, now_ms);
            let response = subject.store.execute(&[operation]).await.into_single().unwrap();
            assert_eq!(response, expected, "{}, step {step}: {operation:?} at {now_ms}", policy.name());
        }
    }
}

/// A batch equals single operations, with results in order.
pub(crate) async fn batches_are_decided_in_order<S: Store>(subject: Subject<S>) {
    let (policies, keys) = (policies(), ["a", "b", "c"].map(String::from));
    let mut random = Random(4711);
    let mut reference = Reference::default();
    let mut now_ms = START;
    for size in [0, 1, 2, 15, 16, 17, 50, 333] {
        now_ms += 700;
        (subject.set_now)(now_ms);
        let operations: Vec<_> = (0..size).map(|_| operation(&mut random, &policies, &keys)).collect();
        let expected: Vec<_> =
            operations.iter().map(|operation| reference.execute(operation, now_ms)).collect();
        let responses = subject.store.execute(&operations).await;
        assert_eq!(responses.len(), size);
        for (place, (response, expected)) in responses.into_iter().zip(expected).enumerate() {
            assert_eq!(response.unwrap(), expected, "{place} of {size}: {:?}", operations[place]);
        }
    }
}

/// Names and keys are distinct regardless of the boundary between them, and so are quotas.
pub(crate) async fn keys_and_policies_do_not_mix<S: Store>(subject: Subject<S>) {
    (subject.set_now)(START);
    let limiter = StoreLimiter::new(subject.store);
    let names = ["a", "ab", "a|b", "A"].map(|name| Policy::parse(name, ["1/1h"]).unwrap());
    let keys: [&[u8]; 9] = [b"", b"a", b"b", b"bc", b"c", b"|c", b"\0", b"\0\0", &[0xff, 0xfe]];
    for policy in &names {
        for key in keys {
            assert!(limiter.check(policy.key(key)).await.unwrap().is_allowed(), "{} {key:?}", policy.name());
            assert!(!limiter.check(policy.key(key)).await.unwrap().is_allowed(), "{} {key:?}", policy.name());
        }
    }
    let long = vec![b'x'; 1 << 20];
    assert!(limiter.check(names[0].key(&long)).await.unwrap().is_allowed());
    assert!(!limiter.check(names[0].key(&long)).await.unwrap().is_allowed());
    assert!(limiter.check(names[0].key(&long[1..])).await.unwrap().is_allowed());
}

/// Two versions of a policy in use at the same time, as tiers or on two servers. A quota of one version counts
/// separately; a quota of both versions is shared.
pub(crate) async fn alternating_versions_keep_their_limits<S: Store>(subject: Subject<S>) {
    (subject.set_now)(START);
    let limiter = StoreLimiter::new(subject.store);
    let pairs: [[&[&str]; 2]; 6] = [
        [&["5/1h"], &["6/1h token-bucket"]],
        [&["5/1h strict-window"], &["6/1h sliding-log"]],
        [&["5/1h fixed-window"], &["6/1h"]],
        [&["5/1h token-bucket"], &["6/1h fixed-window"]],
        [&["5/1m", "20/1h"], &["6/1h"]],
        [&["5/1m", "20/1h token-bucket"], &["9/1m strict-window", "6/1h token-bucket"]],
    ];
    for quotas in pairs {
        let name = format!("{quotas:?}");
        let versions = quotas.map(|quotas| Policy::parse(&name, quotas.iter().copied()).unwrap());
        let mut admitted = [0; 2];
        for step in 0..40 {
            let decision = limiter.check(versions[step % 2].key("k")).await.unwrap();
            admitted[step % 2] += u64::from(decision.is_allowed());
        }
        // In versions that share the hour, 3 of its 6 units belong to the other version. The minute is shared likewise
        // if the algorithm is equal.
        let expected = match quotas[0] {
            [_, "20/1h"] => [3, 3],
            [_, _] => [5, 3],
            _ => [5, 6],
        };
        assert_eq!(admitted, expected, "{name}");
        // A reset clears both versions.
        assert!(limiter.reset(versions[0].key("k")).await.unwrap().is_allowed());
        for version in &versions {
            let used = limiter.peek(version.key("k")).await.unwrap();
            assert!(used.quotas().iter().all(|quota| quota.used == 0), "{name}");
        }
    }
}

/// A debt decreases at the rate of its own bucket, regardless of the order and the set of quotas in a policy.
pub(crate) async fn buckets_of_one_window_keep_their_own_rates<S: Store>(subject: Subject<S>) {
    let limiter = StoreLimiter::new(subject.store);
    let (slow, fast) = ("10/1m token-bucket burst=100", "6000/1m token-bucket burst=100");
    let [policy, reversed, without] = [&[slow, fast][..], &[fast, slow], &[fast]]
        .map(|quotas| Policy::parse("buckets", quotas.iter().copied()).unwrap());
    let mut now = START;
    let mut admitted = 0;
    for _ in 0..6 {
        for (version, cost) in [(&policy, 90), (&without, 1), (&reversed, 1), (&without, 1), (&policy, 1)] {
            now += 500;
            (subject.set_now)(now);
            let is_allowed = limiter.check(version.key("k").cost(cost)).await.unwrap().is_allowed();
            if version.quotas().len() == 2 && is_allowed {
                admitted += cost;
            }
        }
    }
    assert!((90..=100 + 10 * (now - START) / 60_000).contains(&admitted), "{admitted}");
}

/// More versions than a store keeps: all stores drop the same ones.
pub(crate) async fn drops_the_same_versions_as_the_core<S: Store>(subject: Subject<S>) {
    (subject.set_now)(START);
    let mut reference = Reference::default();
    let versions: Vec<Policy> = (0..24)
        .map(|number| {
            let algorithm = ["token-bucket", "sliding-window"][number % 2];
            Policy::parse("versions", [format!("1000/{}m {algorithm}", 60 + number).as_str()]).unwrap()
        })
        .collect();
    for policy in versions.iter().chain(&versions).chain(versions.iter().rev()) {
        let operation = Operation::new(Verb::Check, policy.key("k"));
        let expected = reference.execute(&operation, START);
        assert_eq!(subject.store.execute(&[operation]).await.into_single().unwrap(), expected, "{policy:?}");
    }
}

/// A denial that stores a corrected copy for one quota leaves the other quotas unwritten.
pub(crate) async fn a_denial_uses_up_no_other_quota<S: Store>(subject: Subject<S>) {
    let mut reference = Reference::default();
    let [one, two] = [&["2/1m"][..], &["2/10s", "20/10s anchor=first-request"]]
        .map(|quotas| Policy::parse("denied copy", quotas.iter().copied()).unwrap());
    let mut now_ms = START;
    for (after_ms, policy, cost) in
        [(0, &one, 2), (1, &two, 21), (107_374, &one, 1), (351, &two, 1), (0, &two, 1)]
    {
        now_ms += after_ms;
        (subject.set_now)(now_ms);
        let operation = Operation::new(Verb::Check, policy.key("k").cost(cost));
        let expected = reference.execute(&operation, now_ms);
        assert_eq!(
            subject.store.execute(&[operation]).await.into_single().unwrap(),
            expected,
            "{policy:?} at {now_ms}"
        );
    }
}

/// Many tasks on a frozen clock: each policy admits exactly the limit.
pub(crate) async fn admits_exactly_the_limit_under_contention<S: Store + 'static>(subject: Subject<S>) {
    (subject.set_now)(START);
    let limiter = std::sync::Arc::new(StoreLimiter::new(subject.store));
    for quotas in [
        &["40/1m"][..],
        &["40/1m strict-window"],
        &["40/1m sliding-log"],
        &["40/1m fixed-window"],
        &["40/1m token-bucket"],
        &["40/1m", "100000000/1h"],
        &["1000/1s", "40/1m strict-window", "50/1h"],
    ] {
        let policy = std::sync::Arc::new(Policy::parse(&quotas.join("+"), quotas.iter().copied()).unwrap());
        let tasks: Vec<_> = (0..100)
            .map(|_| {
                let (limiter, policy) = (limiter.clone(), policy.clone());
                tokio::spawn(async move { limiter.check(policy.key("hot")).await.unwrap().is_allowed() })
            })
            .collect();
        let mut admitted = 0;
        for task in tasks {
            admitted += u64::from(task.await.unwrap());
        }
        assert_eq!(admitted, 40, "{quotas:?}");
    }
}

/// A forget clears all keys of one policy, with any algorithm, and no other count.
pub(crate) async fn forgets_all_keys_of_a_policy<S: Store>(subject: Subject<S>) {
    // More keys than a remote store forgets in one step, and fewer than a small memory store holds.
    let count = if subject.effort < 100 { 2500 } else { 100 };
    let limiter = StoreLimiter::new(subject.store);
    let keys: Vec<String> = (0..count).map(|number| format!("user:{number}")).collect();
    let quotas: [&[&str]; 4] = [
        &["5/1h"],
        &["5/1h token-bucket"],
        &["5/1h strict-window"],
        &["5/1h sliding-log", "9/1d fixed-window"],
    ];
    for (round, quotas) in quotas.into_iter().enumerate() {
        // A store may keep the slot of a forgotten key until its count expires.
        (subject.set_now)(START + round as u64 * 10 * 86_400_000);
        let name = format!("forgotten {}", round % 2);
        let quotas: Vec<Quota> = quotas.iter().map(|quota| quota.parse().unwrap()).collect();
        let policy = Policy::new(&name, quotas.clone()).unwrap();
        // Counted separately, although two of them share the name or the text.
        let others = [
            Policy::new("other", quotas.clone()).unwrap(),
            Policy::anonymous(quotas.clone()).unwrap(),
            Policy::candidate_for(&name, quotas.clone()).unwrap(),
        ];
        for other in &others {
            assert!(limiter.check(other.key("user:0").cost(2)).await.unwrap().is_allowed());
        }
        let checks: Vec<Check<'_>> = keys.iter().map(|key| policy.key(key).cost(5)).collect();
        for part in checks.chunks(250) {
            assert!(
                limiter.check_many(part).await.into_iter().all(|decision| decision.unwrap().is_allowed())
            );
        }
        assert!(!limiter.check(policy.key("user:0")).await.unwrap().is_allowed());

        let forgotten = limiter.forget(&policy).await.unwrap();
        assert!(forgotten.is_none_or(|keys| keys == count), "{forgotten:?}");
        let peeks: Vec<_> = checks.iter().map(|check| Operation::new(Verb::Peek, *check)).collect();
        for part in peeks.chunks(250) {
            for decision in limiter.store().execute(part).await {
                let decision = decision.unwrap();
                assert!(decision.is_allowed() && decision.quotas().iter().all(|quota| quota.used == 0));
            }
        }
        for other in &others {
            let decision = limiter.peek(other.key("user:0")).await.unwrap();
            assert!(decision.quotas().iter().all(|quota| quota.used == 2), "{}", other.name());
            let _ = limiter.reset(other.key("user:0")).await.unwrap();
        }
        // The policy counts again from zero and can be forgotten again.
        assert_eq!(limiter.check(policy.key("user:1").cost(3)).await.unwrap().remaining(), 2);
        assert!(limiter.forget(&policy).await.unwrap().is_none_or(|keys| keys == 1));
        assert_eq!(limiter.peek(policy.key("user:1")).await.unwrap().remaining(), 5);
        assert!(limiter.forget(&policy).await.unwrap().is_none_or(|keys| keys == 0));
    }
}

/// Decisions during a forget are neither lost nor late, regardless of locks.
pub(crate) async fn forgetting_disturbs_no_decision<S: Store + 'static>(subject: Subject<S>) {
    (subject.set_now)(START);
    let limiter = std::sync::Arc::new(StoreLimiter::new(subject.store));
    let policy = Policy::parse("busy", ["1000000/1h"]).unwrap();
    let buckets = Policy::parse("busy", ["1000000/1h token-bucket", "1000000/1d"]).unwrap();
    let tasks: Vec<_> = (0..4_usize)
        .map(|number| {
            let (limiter, policy, buckets) = (limiter.clone(), policy.clone(), buckets.clone());
            tokio::spawn(async move {
                for round in 0..25 {
                    let policy = if (number + round) % 5 == 0 { &buckets } else { &policy };
                    // Each task uses a different order.
                    let keys: Vec<String> =
                        (0..40).map(|key| (key * (2 * number + 1) % 41).to_string()).collect();
                    let checks: Vec<_> = keys.iter().map(|key| policy.key(key)).collect();
                    for decision in limiter.check_many(&checks).await {
                        assert!(decision.unwrap().is_allowed());
                    }
                }
            })
        })
        .collect();
    while !tasks.iter().all(tokio::task::JoinHandle::is_finished) {
        limiter.forget(&policy).await.unwrap();
        tokio::task::yield_now().await;
    }
    for task in tasks {
        task.await.unwrap();
    }
}

/// Defines a test for each function of the suite.
macro_rules! suite {
    ($constructor:expr) => {
        $crate::conformance::suite!(
            $constructor,
            decides_like_the_core,
            decides_like_the_core_at_the_extremes,
            counter_forms_change_without_a_difference,
            decides_like_the_core_when_the_clock_steps_back,
            batches_are_decided_in_order,
            keys_and_policies_do_not_mix,
            alternating_versions_keep_their_limits,
            buckets_of_one_window_keep_their_own_rates,
            drops_the_same_versions_as_the_core,
            a_denial_uses_up_no_other_quota,
            strict_windows_merge_up_to_their_bounds,
            fewer_slots_merge_nothing_until_units_are_added,
            decides_like_the_oracle,
            a_lowered_bucket_fills_in_time,
            a_count_survives_other_tiers,
            a_bucket_in_use_fills_in_time_despite_other_versions,
            a_refund_applies_to_every_version,
            an_empty_count_hides_no_other_after_a_step_back,
            admits_exactly_the_limit_under_contention,
            forgets_all_keys_of_a_policy,
            forgetting_disturbs_no_decision
        );
    };
    ($constructor:expr, $($name:ident),+) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                $crate::conformance::$name($constructor).await;
            }
        )+
    };
}
pub(crate) use suite;
