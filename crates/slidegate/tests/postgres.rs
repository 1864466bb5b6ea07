//! Conformance suite for the PostgreSQL store, with durable and ephemeral tables.

#![cfg(feature = "postgres")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod conformance;

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use conformance::{Random, Reference, START, Subject};
use slidegate::store::{Operation, PostgresStore, Store};
use slidegate::{ManualClock, Policy, Verb};
use slidegate_testkit::Postgres;

/// Server shared by all tests of this file.
static SERVER: LazyLock<Postgres> = LazyLock::new(Postgres::start);

/// Connects to the shared server with a schema of its own.
async fn subject(is_durable: bool, connections: usize) -> Subject<PostgresStore> {
    static SUBJECTS: AtomicU64 = AtomicU64::new(0);
    let schema = format!("subject{}", SUBJECTS.fetch_add(1, Relaxed));
    let clock = ManualClock::at(START);
    let builder = PostgresStore::builder(&SERVER.url()).unwrap().schema(&schema).unwrap();
    let builder = builder.durable(is_durable).time_from(clock.clone()).budget(Duration::from_secs(20));
    let store = builder.connections(connections).connect().await.unwrap();
    Subject { store, set_now: Box::new(move |now_ms| clock.set(now_ms)), effort: 20 }
}

/// Batches of many keys with the same check run as one set-based statement. The decisions equal the core's, over
/// rolling windows, changing quotas, products beyond 64 bits and a clock that steps back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sets_are_decided_like_the_core() {
    let traces: [(&[&str], u64, u64); 4] = [
        (
            &["10/1s", "5/1s", "10/3s", "200000/1s", "10/1s strict-window", "10/1s anchor=first-request"],
            700,
            0,
        ),
        (&["100/1h", "60/1h"], 20_000, 15_000),
        (&["281474976710656/366d", "281474976710656/365d"], 4_000_000_000, 0),
        (&["281474976710656/30s", "7/30s"], 9_000, 0),
    ];
    for (number, (quotas, step_ms, back_ms)) in traces.into_iter().enumerate() {
        let Subject { store, set_now, .. } = subject(number % 2 == 1, 1).await;
        let policies: Vec<_> = quotas.iter().map(|quota| Policy::parse("set", [*quota]).unwrap()).collect();
        let keys: Vec<String> = (0..24).map(|key| key.to_string()).collect();
        let mut random = Random(0xA076_1D64_78BD_642F + number as u64);
        let mut reference = Reference::default();
        let (mut now_ms, mut policy) = (START, &policies[0]);
        for step in 0..400 {
            now_ms += random.below(3) * random.below(step_ms);
            now_ms -= if random.below(20) == 0 { random.below(back_ms + 1) } else { 0 };
            set_now(now_ms);
            if random.below(25) == 0 {
                policy = &policies[usize::try_from(random.below(policies.len() as u64)).unwrap()];
            }
            let limit = policy.quotas()[0].limit();
            let cost =
                [1, 1 + random.below(limit) / 3, limit + 1][usize::from(step % 9 == 0) * (step % 2 + 1)];
            let few = 3 + random.below(20);
            // Some batches contain a few keys repeatedly.
            let runs = [1, 1, 1, 2, 9][usize::try_from(random.below(5)).unwrap()];
            let operations: Vec<_> = (0..runs)
                .flat_map(|_| &keys)
                .filter(|_| random.below(24) < few)
                .map(|key| Operation::new(Verb::Check, policy.key(key).cost(cost)))
                .collect();
            let responses = store.execute(&operations).await;
            for (operation, response) in operations.iter().zip(responses) {
                let expected = reference.execute(operation, now_ms);
                assert_eq!(response.unwrap(), expected, "{quotas:?}, step {step}: {operation:?} at {now_ms}");
            }
        }
    }
}

/// A batch with 20 checks of one key, before its row exists and afterwards.
#[tokio::test]
async fn a_batch_exceeds_the_limit_of_a_new_key() {
    let Subject { store, set_now, .. } = subject(false, 1).await;
    set_now(START);
    let mut reference = Reference::default();
    let policy = Policy::parse("api", ["5/1h"]).unwrap();
    for cost in [2, 1, 6] {
        let check = Operation::new(Verb::Check, policy.key("new").cost(cost));
        let operations = [check; 20];
        for (place, response) in store.execute(&operations).await.into_iter().enumerate() {
            assert_eq!(response.unwrap(), reference.execute(&check, START), "{place} of cost {cost}");
        }
    }
}

mod ephemeral {
    use super::*;

    conformance::suite!(subject(false, 4).await);
}

mod durable {
    use super::*;

    conformance::suite!(
        subject(true, 4).await,
        decides_like_the_core_when_the_clock_steps_back,
        batches_are_decided_in_order,
        keys_and_policies_do_not_mix,
        decides_like_the_oracle,
        strict_windows_merge_up_to_their_bounds,
        a_lowered_bucket_fills_in_time,
        a_count_survives_other_tiers,
        admits_exactly_the_limit_under_contention
    );
}
