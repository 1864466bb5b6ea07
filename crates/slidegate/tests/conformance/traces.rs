//! Changing limits, against an oracle that shares no code with the core, and regression cases.

use slidegate::store::{Operation, Store};
use slidegate::{Algorithm, Policy, Verb};

use super::model::{Outcome, Step, assert_traces_match_oracle};
use super::{START, Subject};

/// Many short traces: each decision equals the oracle's in all fields.
pub(crate) async fn decides_like_the_oracle<S: Store>(subject: Subject<S>) {
    let mut keys = 0_u64;
    let Subject { store, set_now, effort } = &subject;
    let new_key = || {
        keys += 1;
        let key = keys.to_string();
        async move |policy: &Policy, step: Step| {
            set_now(step.now_ms);
            let check = policy.key(&key).cost(step.cost);
            Outcome::from(&store.execute(&[Operation::new(step.verb, check)]).await.into_single().unwrap())
        }
    };
    assert_traces_match_oracle(12 * effort, new_key).await;
}

/// The rate of a token bucket falls after all units were spent. The wait is at most the fill time of the new bucket,
/// and a debt that was paid at the old rate before the change is gone.
pub(crate) async fn a_lowered_bucket_fills_in_time<S: Store>(subject: Subject<S>) {
    (subject.set_now)(START);
    let fast = Policy::parse("lowered", ["1000/1s token-bucket"]).unwrap();
    let slow = Policy::parse("lowered", ["10/1m token-bucket"]).unwrap();
    let check = async |policy: &Policy, key: &str, cost: u64| {
        let operation = Operation::new(Verb::Check, policy.key(key).cost(cost));
        subject.store.execute(&[operation]).await.into_single().unwrap()
    };
    for key in ["at once", "after 3 s", "after 400 ms"] {
        assert!(check(&fast, key, 1000).await.is_allowed(), "{key}");
    }
    let denied = check(&slow, "at once", 1).await;
    assert_eq!((denied.is_allowed(), denied.quotas()[0].used), (false, 10));
    assert_eq!((denied.retry_after_ms(), denied.reset_after_ms()), (Some(6000), 60_000));
    // The remaining debt of 600 of 1,000 fills the new bucket.
    (subject.set_now)(START + 400);
    let denied = check(&slow, "after 400 ms", 10).await;
    assert_eq!((denied.is_allowed(), denied.retry_after_ms()), (false, Some(60_000)));
    (subject.set_now)(START + 3000);
    let allowed = check(&slow, "after 3 s", 10).await;
    assert_eq!((allowed.is_allowed(), allowed.quotas()[0].used), (true, 10));
    // The denial at the time of the change has begun to fill the new bucket.
    (subject.set_now)(START + 59_999);
    assert!(!check(&slow, "at once", 10).await.is_allowed());
    (subject.set_now)(START + 60_000);
    assert!(check(&slow, "at once", 10).await.is_allowed());
}

/// A count in another tier's window survives a request in a third tier that counts by another algorithm.
pub(crate) async fn a_count_survives_other_tiers<S: Store>(subject: Subject<S>) {
    (subject.set_now)(START);
    for (number, &algorithm) in Algorithm::ALL.iter().enumerate() {
        let name = format!("tiers {number}");
        let other = Algorithm::ALL[(number + 1) % 5];
        let tier = |quotas: &[&str]| Policy::parse(&name, quotas.iter().copied()).unwrap();
        let default = tier(&[&format!("10/1m {algorithm}")]);
        let longer = tier(&[&format!("10/1h {algorithm}")]);
        let elsewhere = tier(&[&format!("10/1m {other}")]);
        let check = async |policy: &Policy, key: &str, cost: u64| {
            let operation = Operation::new(Verb::Check, policy.key(key).cost(cost));
            subject.store.execute(&[operation]).await.into_single().unwrap().is_allowed()
        };
        assert!(check(&longer, "k", 10).await);
        assert!(check(&elsewhere, "k", 1).await);
        assert!(!check(&default, "k", 1).await, "{algorithm}");
        // Position in a policy of several quotas does not matter.
        let both = tier(&[&format!("20/1m {other}"), &format!("20/1h {algorithm}")]);
        assert!(check(&both, "l", 10).await);
        assert!(!check(&elsewhere, "l", 10).await, "{algorithm}: {other} is shared");
        assert!(!check(&longer, "l", 1).await, "{algorithm}");
    }
}

/// Another version spends more than a bucket in use holds. The wait is at most the bucket's fill time.
pub(crate) async fn a_bucket_in_use_fills_in_time_despite_other_versions<S: Store>(subject: Subject<S>) {
    const FILL_MS: u64 = 60_000;
    let slow = Policy::parse("in turn", ["10/1m token-bucket"]).unwrap();
    let fast = Policy::parse("in turn", ["1000/1s token-bucket"]).unwrap();
    let check = async |policy: &Policy, cost: u64| {
        let operation = Operation::new(Verb::Check, policy.key("k").cost(cost));
        subject.store.execute(&[operation]).await.into_single().unwrap()
    };
    (subject.set_now)(START);
    assert!(check(&slow, 1).await.is_allowed());
    for second in 0..5 {
        (subject.set_now)(START + second * 1000);
        assert!(check(&fast, 950).await.is_allowed(), "second {second}");
        let denied = check(&slow, 1).await;
        assert!(!denied.is_allowed() && denied.quotas()[0].used <= 10, "second {second}: {denied:?}");
        assert!(
            denied.retry_after_ms().is_some_and(|wait| wait <= FILL_MS / 10),
            "second {second}: {denied:?}"
        );
        assert!(denied.reset_after_ms() <= FILL_MS, "second {second}: {denied:?}");
    }
    (subject.set_now)(START + 4000 + FILL_MS);
    assert!(check(&slow, 10).await.is_allowed());
}

/// Units refunded under one version of a policy are refunded under all versions that counted them.
pub(crate) async fn a_refund_applies_to_every_version<S: Store>(subject: Subject<S>) {
    (subject.set_now)(START);
    for &algorithm in Algorithm::ALL {
        let name = format!("refunded {algorithm}");
        let small = Policy::parse(&name, [format!("10/1h {algorithm}").as_str()]).unwrap();
        let large = Policy::parse(&name, [format!("1000/1m {algorithm}").as_str()]).unwrap();
        let run = async |verb: Verb, policy: &Policy, cost: u64| {
            let operation = Operation::new(verb, policy.key("k").cost(cost));
            subject.store.execute(&[operation]).await.into_single().unwrap()
        };
        assert!(run(Verb::Check, &small, 1).await.is_allowed());
        for _ in 0..3 {
            assert!(run(Verb::Check, &large, 8).await.is_allowed());
            let _ = run(Verb::Refund, &large, 8).await;
        }
        let peeked = run(Verb::Peek, &small, 9).await;
        assert_eq!((peeked.is_allowed(), peeked.quotas()[0].used), (true, 1), "{algorithm}");
        assert!(run(Verb::Check, &large, 8).await.is_allowed());
        let peeked = run(Verb::Peek, &small, 2).await;
        assert_eq!((peeked.is_allowed(), peeked.quotas()[0].used), (false, 9), "{algorithm}: not refunded");
    }
}

/// A count of 0 that is the only one of its algorithm is dropped by the next version of the policy, also if the clock has stepped
/// back before its time. The version then starts with a copy of the present count.
pub(crate) async fn an_empty_count_hides_no_other_after_a_step_back<S: Store>(subject: Subject<S>) {
    // A copy of a log would contain only the units of the shorter window.
    for algorithm in [Algorithm::SlidingWindow, Algorithm::FixedWindow, Algorithm::TokenBucket] {
        let (name, other) = (format!("empty {algorithm}"), Algorithm::StrictWindow);
        let version = |quotas: &[&str]| Policy::parse(&name, quotas.iter().copied()).unwrap();
        let first = version(&[&format!("7/10ms {algorithm}"), &format!("300/1s {other}")]);
        let run = async |verb: Verb, at_ms: u64, policy: &Policy, cost: u64| {
            (subject.set_now)(at_ms);
            let operation = Operation::new(verb, policy.key("k").cost(cost));
            subject.store.execute(&[operation]).await.into_single().unwrap()
        };
        let _ = run(Verb::Block, START, &first, 14).await;
        let _ = run(Verb::Charge, START - 10, &version(&[&format!("20/10ms {other}")]), 1).await;
        let _ = run(Verb::Charge, START - 10, &version(&[&format!("20/1d {algorithm}")]), 2).await;
        let checked = run(Verb::Check, START + 50, &first, 1).await;
        assert_eq!(checked.quotas()[0].used, 3, "{algorithm}");
    }
}
