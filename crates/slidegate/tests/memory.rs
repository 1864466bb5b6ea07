//! Conformance suite for the memory store.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod conformance;

use conformance::{START, Subject};
use slidegate::ManualClock;
use slidegate::store::MemoryStore;

fn subject(max_keys: usize) -> Subject<MemoryStore<ManualClock>> {
    let clock = ManualClock::at(START);
    let store = MemoryStore::builder().max_keys(max_keys).clock(clock.clone()).build().unwrap();
    Subject { store, set_now: Box::new(move |now_ms| clock.set(now_ms)), effort: 100 }
}

// More keys than a long run has traces, so that no count is evicted.
conformance::suite!(subject(1_000_000));

mod on_a_single_page {
    use super::subject;

    super::conformance::suite!(subject(150));
}
