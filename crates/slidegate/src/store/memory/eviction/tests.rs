//! Tests of the index of denied pages.

use slidegate_core::{Decision, Policy, Verb};

use super::super::settings::Settings;
use super::super::slots::{KeyId, Slot};
use super::super::table::Table;
use super::policy::CandidateKind;
use crate::clock::ManualClock;

const PAGES: usize = 60;
const KEYS: usize = PAGES * 175;
/// The beginning of a window.
const NOW: u64 = 1_800_000_000_000;
const MINUTE: u64 = 60_000;

fn table() -> Table {
    let mut settings = Settings::default();
    settings.max_keys = KEYS;
    Table::new(settings)
}

fn execute(table: &Table, policy: &Policy, id: KeyId, (verb, now_ms, cost): (Verb, u64, u64)) -> Decision {
    table.execute(policy, id, verb, now_ms, cost, &ManualClock::at(now_ms)).unwrap()
}

fn spend(table: &Table, policy: &Policy, key: &str, now_ms: u64, cost: u64) {
    let id = table.id(table.hash(&policy.key(key)));
    assert!(execute(table, policy, id, (Verb::Check, now_ms, cost)).is_allowed(), "{key}");
}

/// Returns the number of pages that a search for a victim would scan.
fn possible_pages(table: &Table, now_ms: u64) -> usize {
    table.denied_pages.possible_pages(now_ms).count()
}

/// Otherwise the first eviction would scan a million keys.
#[test]
fn all_denied_pages_are_known_before_the_first_eviction() {
    for quota in ["3/1h", "3/1h fixed-window", "3/1h token-bucket", "3/1h sliding-log", "3000000000/1h"] {
        for steps in [1, 3] {
            let (table, policy) = (table(), Policy::parse("api", [quota]).unwrap());
            for number in 0..KEYS {
                for _ in 0..steps {
                    let cost = policy.quotas()[0].capacity() / steps;
                    spend(&table, &policy, &number.to_string(), NOW, cost);
                }
            }
            assert_eq!((table.keys(), table.evicted()), (KEYS, 0));
            assert_eq!(possible_pages(&table, NOW), 0, "{quota}, in {steps} steps");
            assert!(possible_pages(&table, NOW + 2 * 60 * MINUTE) > 0, "entries expire");
        }
    }
}

/// An eviction extends the entry of a page to the end of the remaining denials.
#[test]
fn an_entry_lasts_as_long_as_the_remaining_keys_are_denied() {
    let (table, policy) = (table(), Policy::parse("api", ["1/1m"]).unwrap());
    let mut first: Vec<String> = (0..KEYS).map(|number| format!("first {number}")).collect();
    for key in &first {
        spend(&table, &policy, key, NOW, 1);
    }
    let is_evicted = |key: &String| {
        let id = table.id(table.hash(&policy.key(key)));
        execute(&table, &policy, id, (Verb::Peek, NOW + MINUTE, 1)).is_allowed()
    };
    // Until the last of the first keys is evicted.
    for number in 0.. {
        spend(&table, &policy, &format!("second {number}"), NOW + MINUTE, 1);
        while first.pop_if(|key| is_evicted(key)).is_some() {}
        if first.is_empty() {
            break;
        }
    }
    // By now their counts would have expired. All other keys are denied.
    assert_eq!(possible_pages(&table, NOW + 2 * MINUTE), 0);
}

/// Two evictable keys that came after the page was marked: one is evicted, and the page is not marked again.
#[test]
fn a_key_that_came_meanwhile_is_not_treated_as_denied() {
    let mut settings = Settings::default();
    settings.max_keys = 175;
    let (table, policy) = (Table::new(settings), Policy::parse("api", ["5/1h"]).unwrap());
    for key in ["one", "another"] {
        spend(&table, &policy, key, NOW, 1);
    }
    let mut page = table.pages[0].lock(0);
    let candidates = table.slots.whole_page(0).filter(Slot::is_owned);
    let scan = table.scan(candidates, |_, _| false, &page, NOW);
    assert!(table.clear_denied(CandidateKind::AnyKey, scan.lowest.unwrap(), &scan, &mut page, NOW));
    assert!(!table.denied_pages.contains(0, NOW));
}

#[test]
fn a_clock_that_steps_back_clears_the_index() {
    let (table, policy) = (table(), Policy::parse("api", ["1/1m"]).unwrap());
    for number in 0..KEYS {
        spend(&table, &policy, &number.to_string(), NOW, 1);
    }
    spend(&table, &policy, "one more", NOW, 1);
    let earlier = NOW - 1000 * MINUTE;
    spend(&table, &policy, "earlier", earlier, 1);
    // The repaired counter of a key expires two windows later.
    let later = earlier + 3 * MINUTE;
    let evicted = table.evicted();
    let id = table.id(table.hash(&policy.key("earlier")));
    assert!(execute(&table, &policy, id, (Verb::Peek, later, 1)).is_allowed());
    spend(&table, &policy, "later", later, 1);
    assert_eq!(table.evicted(), evicted, "an expired key was removed instead");
}
