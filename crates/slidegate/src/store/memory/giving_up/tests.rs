//! What is known of pages without a look at them.

use slidegate_core::{Decision, Policy, Verb};

use super::super::settings::Settings;
use super::super::slots::KeyId;
use super::*;
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

/// How many pages a new key would have to look at.
fn unknown(table: &Table, now_ms: u64) -> usize {
    table.barren.others(now_ms).count()
}

/// Once wrong: it would have had one check look at a million keys.
#[test]
fn all_is_known_by_the_time_that_somebody_has_to_go() {
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
            assert_eq!(unknown(&table, NOW), 0, "{quota}, in {steps} steps");
            assert!(unknown(&table, NOW + 2 * 60 * MINUTE) > 0, "it holds for a time");
        }
    }
}

/// Once wrong: a page was known to have nobody until the first denial ended, although who was denied so had gone.
#[test]
fn it_is_known_for_as_long_as_those_who_are_left_are_denied() {
    let (table, policy) = (table(), Policy::parse("api", ["1/1m"]).unwrap());
    let mut first: Vec<String> = (0..KEYS).map(|number| format!("first {number}")).collect();
    for key in &first {
        spend(&table, &policy, key, NOW, 1);
    }
    let is_gone = |key: &String| {
        let id = table.id(table.hash(&policy.key(key)));
        execute(&table, &policy, id, (Verb::Peek, NOW + MINUTE, 1)).is_allowed()
    };
    // Until the very last of them has gone.
    for number in 0.. {
        spend(&table, &policy, &format!("second {number}"), NOW + MINUTE, 1);
        while first.pop_if(|key| is_gone(key)).is_some() {}
        if first.is_empty() {
            break;
        }
    }
    // Now they would be over, and all others are denied.
    assert_eq!(unknown(&table, NOW + 2 * MINUTE), 0);
}

/// As if they had come after it was found that all are denied: one goes, and it stays known that the other can.
#[test]
fn who_came_meanwhile_is_not_taken_for_denied() {
    let mut settings = Settings::default();
    settings.max_keys = 175;
    let (table, policy) = (Table::new(settings), Policy::parse("api", ["5/1h"]).unwrap());
    for key in ["one", "another"] {
        spend(&table, &policy, key, NOW, 1);
    }
    let mut page = table.pages[0].lock(0);
    let candidates = table.slots.whole_page(0).filter(Slot::is_owned);
    let look = table.look(candidates, |_, _| false, &page, NOW);
    assert!(table.clear_denied(Candidate::AnyKey, look.least.unwrap(), &look, &mut page, NOW));
    assert!(!table.barren.has(0, NOW));
}

#[test]
fn a_clock_that_steps_back_is_believed() {
    let (table, policy) = (table(), Policy::parse("api", ["1/1m"]).unwrap());
    for number in 0..KEYS {
        spend(&table, &policy, &number.to_string(), NOW, 1);
    }
    spend(&table, &policy, "one more", NOW, 1);
    let earlier = NOW - 1000 * MINUTE;
    spend(&table, &policy, "earlier", earlier, 1);
    // Who is mended under that clock counts for two of its windows.
    let later = earlier + 3 * MINUTE;
    let evicted = table.evicted();
    let id = table.id(table.hash(&policy.key("earlier")));
    assert!(execute(&table, &policy, id, (Verb::Peek, later, 1)).is_allowed());
    spend(&table, &policy, "later", later, 1);
    assert_eq!(table.evicted(), evicted, "one that counts nothing has gone");
}
