//! The PostgreSQL store joins the conformance suite, with each of its tables.

#![cfg(feature = "postgres")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod conformance;

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use conformance::{START, Subject};
use slidegate::{ManualClock, PostgresStore};
use slidegate_testkit::Postgres;

/// All tests of this file share it.
static SERVER: LazyLock<Postgres> = LazyLock::new(Postgres::start);

/// A store with a schema of its own.
async fn subject(is_durable: bool) -> Subject<PostgresStore> {
    static SUBJECTS: AtomicU64 = AtomicU64::new(0);
    let schema = format!("subject{}", SUBJECTS.fetch_add(1, Relaxed));
    let clock = ManualClock::at(START);
    let builder = PostgresStore::builder(&SERVER.url()).unwrap().schema(&schema).unwrap();
    let builder = builder.durable(is_durable).time_from(clock.clone()).budget(Duration::from_secs(20));
    let store = builder.connect().await.unwrap();
    Subject { store, set_now: Box::new(move |now_ms| clock.set(now_ms)) }
}

mod ephemeral {
    use super::*;

    conformance::suite!(subject(false).await);
}

mod durable {
    use super::*;

    conformance::suite!(
        subject(true).await,
        keeps_its_head_when_the_clock_steps_back,
        batches_are_decided_in_order,
        keys_and_policies_do_not_mix,
        admits_exactly_the_limit_under_contention
    );
}
