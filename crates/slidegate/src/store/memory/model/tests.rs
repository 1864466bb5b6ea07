//! Tests of the whole table under a model checker, which runs small programs in every order that the memory model
//! allows.
//!
//! In each order, the decisions and the final counts must equal those of some sequential order of the same steps. So no
//! limit is exceeded, no count is lost or charged to another key, and no other key is evicted than sequentially.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use loom::model::Builder;
use loom::thread;
use slidegate_core::{Decision, Policy, Verb};

use super::super::settings::Settings;
use super::super::slots::KeyId;
use super::super::table::Table;
use crate::clock::ManualClock;

const MINUTE: u64 = 60_000;
/// Beginning of a window.
const NOW: u64 = 30_000_000 * MINUTE;

/// Quota of three units, and the quota that it is changed to.
struct Form {
    quota: &'static str,
    changed: &'static str,
    unit: u64,
}

const PACKED: Form = Form { quota: "3/1m", changed: "4/1m", unit: 1 };
const WIDE: Form = Form { quota: "30000000000/1m", changed: "40000000000/1m", unit: 10_000_000_000 };
/// Packed too, but never decided on the fast path.
const FIXED: Form = Form { quota: "3/1m fixed-window", changed: "4/1m fixed-window", unit: 1 };
/// Decided under the lock, while other words change without it.
const BUCKET: Form = Form { quota: "3/1m token-bucket", changed: "4/1m token-bucket", unit: 1 };
/// Both use the wide array: the first is decided without the lock, the second changes while its word does not.
const MIXED: Form =
    Form { quota: "30000000000/1m", changed: "40000000000/1m token-bucket", unit: 10_000_000_000 };

/// One operation of a thread.
#[derive(Clone, Copy)]
struct Step {
    verb: Verb,
    key: u64,
    units: u64,
    now_ms: u64,
    is_changed: bool,
}

fn step(verb: Verb, key: u64, units: u64) -> Step {
    Step { verb, key, units, now_ms: NOW, is_changed: false }
}

fn check(key: u64, units: u64) -> Step {
    step(Verb::Check, key, units)
}

fn peek(key: u64) -> Step {
    step(Verb::Peek, key, 1)
}

impl Step {
    fn at(self, now_ms: u64) -> Self {
        Self { now_ms, ..self }
    }

    fn changed(self) -> Self {
        Self { is_changed: true, ..self }
    }
}

/// Operations before the threads start, of each thread, and after the threads have ended.
#[derive(Default)]
struct Scenario {
    max_keys: usize,
    before: Vec<Step>,
    threads: Vec<Vec<Step>>,
    after: Vec<Step>,
}

/// Observable result of a scenario: the decisions, and the numbers of keys and of evictions.
#[derive(Debug, PartialEq)]
struct Observed {
    decisions: Vec<Vec<Decision>>,
    after: Vec<Decision>,
    keys: usize,
    evicted: u64,
}

/// A table of numbered keys. The tens of a number are the page, the number itself is the tag.
struct ModelTable {
    table: Table,
    policies: [Policy; 2],
    unit: u64,
    /// Clock at the time of the latest step; steps of an earlier time are late.
    clock: ManualClock,
}

impl ModelTable {
    fn new(scenario: &Scenario, form: &Form) -> Self {
        let mut settings = Settings::default();
        settings.max_keys = scenario.max_keys;
        let policies = [form.quota, form.changed].map(|quota| Policy::parse("api", [quota]).unwrap());
        let steps = scenario.before.iter().chain(scenario.threads.iter().flatten());
        let clock = ManualClock::at(steps.map(|step| step.now_ms).max().unwrap_or(NOW));
        let model_table = Self { table: Table::new(settings), policies, unit: form.unit, clock };
        model_table.execute_all(&scenario.before);
        model_table
    }

    fn execute(&self, step: &Step) -> Decision {
        let id = KeyId { tag: 2 + step.key, home_line: (step.key / 10) as u32 };
        let policy = &self.policies[usize::from(step.is_changed)];
        self.table.execute(policy, id, step.verb, step.now_ms, step.units * self.unit, &self.clock).unwrap()
    }

    fn execute_all(&self, steps: &[Step]) -> Vec<Decision> {
        steps.iter().map(|step| self.execute(step)).collect()
    }

    fn observe(&self, decisions: Vec<Vec<Decision>>, after: &[Step]) -> Observed {
        let (keys, evicted) = (self.table.keys(), self.table.evicted());
        Observed { decisions, after: self.execute_all(after), keys, evicted }
    }
}

/// Calls `each` with every sequential order of the steps: the thread of each step.
fn for_each_order(left: &mut [usize], order: &mut Vec<usize>, each: &mut impl FnMut(&[usize])) {
    if left.iter().all(|left| *left == 0) {
        return each(order);
    }
    for thread in 0..left.len() {
        if left[thread] > 0 {
            left[thread] -= 1;
            order.push(thread);
            for_each_order(left, order, each);
            order.pop();
            left[thread] += 1;
        }
    }
}

fn run_sequentially(scenario: &Scenario, form: &Form) -> Vec<Observed> {
    let mut all = Vec::new();
    let mut left: Vec<usize> = scenario.threads.iter().map(Vec::len).collect();
    for_each_order(&mut left, &mut Vec::new(), &mut |order| {
        let model_table = ModelTable::new(scenario, form);
        let mut decisions = vec![Vec::new(); scenario.threads.len()];
        for thread in order {
            let step = &scenario.threads[*thread][decisions[*thread].len()];
            decisions[*thread].push(model_table.execute(step));
        }
        all.push(model_table.observe(decisions, &scenario.after));
    });
    all
}

fn run_concurrently(scenario: &Arc<Scenario>, form: &Form) -> Observed {
    let model_table = Arc::new(ModelTable::new(scenario, form));
    let spawn = |number: usize| {
        let (model_table, scenario) = (model_table.clone(), scenario.clone());
        thread::spawn(move || model_table.execute_all(&scenario.threads[number]))
    };
    let others: Vec<_> = (1..scenario.threads.len()).map(spawn).collect();
    let mut decisions = vec![model_table.execute_all(&scenario.threads[0])];
    decisions.extend(others.into_iter().map(|thread| thread.join().unwrap()));
    model_table.observe(decisions, &scenario.after)
}

/// Runs the scenario in every form and in every order of at most `interruptions` preemptions.
fn explore(scenario: Scenario, interruptions: usize) {
    let scenario = Arc::new(scenario);
    let mut model = Builder::new();
    model.preemption_bound = Some(interruptions);
    model.max_branches = 10_000;
    let changes = scenario.threads.iter().flatten().any(|step| step.is_changed);
    let forms = [&PACKED, &WIDE, &FIXED, &BUCKET].into_iter().chain(changes.then_some(&MIXED));
    for form in forms {
        let [expected, found] = [(); 2].map(|()| Arc::new(Mutex::new(Vec::new())));
        // Two models: atomics exist only within a run, and all runs of a model must begin alike.
        model.check({
            let (scenario, expected) = (scenario.clone(), expected.clone());
            move || *lock(&expected) = run_sequentially(&scenario, form)
        });
        model.check({
            let (scenario, expected, found) = (scenario.clone(), expected.clone(), found.clone());
            move || {
                let observed = run_concurrently(&scenario, form);
                let (expected, mut found) = (lock(&expected), lock(&found));
                assert!(
                    expected.contains(&observed),
                    "{}: {observed:#?} is none of {expected:#?}",
                    form.quota
                );
                if !found.contains(&observed) {
                    found.push(observed);
                }
            }
        });
        let (expected, found) = (lock(&expected), lock(&found));
        assert!(
            expected.iter().all(|observed| found.contains(observed)),
            "{}: not every order was tried",
            form.quota
        );
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[test]
fn each_check_of_one_key_is_counted_or_denied() {
    let scenario = Scenario {
        max_keys: 4,
        before: vec![check(1, 1)],
        threads: vec![vec![check(1, 1), check(1, 1)], vec![check(1, 1)]],
        after: vec![peek(1)],
    };
    explore(scenario, 3);
}

#[test]
fn a_new_key_takes_one_slot() {
    let scenario = Scenario {
        max_keys: 4,
        threads: vec![vec![check(1, 2)], vec![check(1, 2)]],
        after: vec![peek(1)],
        ..Scenario::default()
    };
    explore(scenario, 3);
}

#[test]
fn a_refund_and_a_check_are_both_counted() {
    let refund = || vec![step(Verb::Refund, 1, 1)];
    // Three threads take the model long, because a refund needs the lock.
    for (threads, interruptions) in
        [(vec![vec![check(1, 2)], refund()], 3), (vec![vec![check(1, 2)], refund(), vec![check(1, 1)]], 1)]
    {
        let scenario = Scenario { max_keys: 4, before: vec![check(1, 2)], threads, after: vec![peek(1)] };
        explore(scenario, interruptions);
    }
}

#[test]
fn a_reset_clears_earlier_counts_and_no_later_ones() {
    let scenario = Scenario {
        max_keys: 4,
        before: vec![check(1, 1)],
        threads: vec![vec![check(1, 1)], vec![step(Verb::Reset, 1, 0)]],
        after: vec![peek(1)],
    };
    explore(scenario, 3);
}

#[test]
fn a_slot_that_passes_to_another_key_is_not_confused() {
    let scenario = Scenario {
        max_keys: 4,
        before: vec![check(1, 1)],
        threads: vec![vec![check(1, 1)], vec![step(Verb::Reset, 1, 0), check(2, 1)]],
        after: vec![peek(1), peek(2)],
    };
    explore(scenario, 3);
}

/// Like the test above, with a check that only reads, from a slot that passes to another key.
#[test]
fn a_denial_uses_the_counts_of_its_own_key() {
    let scenario = Scenario {
        max_keys: 4,
        before: vec![check(1, 2)],
        threads: vec![
            vec![check(1, 2)],
            vec![step(Verb::Reset, 1, 0), check(2, 1).at(NOW - MINUTE), check(2, 1)],
        ],
        after: vec![peek(1), peek(2)],
    };
    explore(scenario, 2);
}

/// Like the test above, with a new owner whose wide part changes while its word does not.
#[test]
fn a_wide_part_of_another_key_is_not_read() {
    let scenario = Scenario {
        max_keys: 4,
        before: vec![check(1, 2)],
        threads: vec![
            vec![check(1, 2)],
            vec![step(Verb::Reset, 1, 0), check(2, 1).at(NOW - MINUTE).changed(), check(2, 1).changed()],
        ],
        after: vec![peek(1), peek(2).changed()],
    };
    explore(scenario, 2);
}

#[test]
fn a_new_key_is_not_denied_by_the_counts_of_a_former_owner() {
    let scenario = Scenario {
        max_keys: 4,
        before: vec![check(1, 3)],
        threads: vec![vec![check(2, 1)], vec![step(Verb::Reset, 1, 0), check(2, 1)]],
        after: vec![peek(1), peek(2)],
    };
    explore(scenario, 2);
}

#[test]
fn a_full_page_evicts_and_the_evicted_key_starts_empty() {
    let scenario = Scenario {
        max_keys: 4,
        before: vec![check(1, 1), check(2, 2), check(3, 2), check(4, 2)],
        threads: vec![vec![check(1, 1)], vec![check(5, 1)]],
        after: [1, 2, 3, 4, 5].map(peek).to_vec(),
    };
    explore(scenario, 2);
}

/// Key 1 has the lowest rank until it is denied.
#[test]
fn a_key_that_is_denied_meanwhile_is_not_evicted() {
    let scenario = Scenario {
        max_keys: 4,
        before: vec![check(1, 1), check(2, 1).at(NOW + MINUTE), check(3, 3), check(4, 3)],
        threads: vec![vec![check(1, 2)], vec![check(5, 1)]],
        after: [1, 2, 3, 4, 5].map(peek).to_vec(),
    };
    explore(scenario, 2);
}

#[test]
fn a_key_that_counts_again_meanwhile_is_not_swept() {
    let later = NOW + 2 * MINUTE;
    let scenario = Scenario {
        max_keys: 4,
        before: vec![check(1, 3)],
        threads: vec![vec![check(1, 2).at(later)], vec![check(2, 1).at(later)]],
        after: vec![peek(1).at(later), peek(2).at(later)],
    };
    explore(scenario, 2);
}

#[test]
fn a_new_window_begins_for_all_threads_or_none() {
    let scenario = Scenario {
        max_keys: 4,
        before: vec![check(1, 1).at(NOW - MINUTE), check(1, 2)],
        threads: vec![
            vec![check(1, 1).at(NOW + MINUTE - 1)],
            vec![check(1, 1).at(NOW + MINUTE + MINUTE / 2)],
        ],
        after: vec![peek(1).at(NOW + 2 * MINUTE - 1)],
    };
    explore(scenario, 3);
}

#[test]
fn a_limit_that_changes_loses_no_count() {
    let scenario = Scenario {
        max_keys: 4,
        before: vec![check(1, 1)],
        threads: vec![vec![check(1, 1)], vec![check(1, 2).changed()]],
        after: vec![peek(1), peek(1).changed()],
    };
    explore(scenario, 3);
}

/// Two pages evict at the same time because the table is full.
#[test]
fn there_are_never_more_keys_than_max_keys() {
    let scenario = Scenario {
        max_keys: 5,
        before: vec![check(1, 1), check(2, 1), check(11, 1), check(12, 1), check(13, 1)],
        threads: vec![vec![check(3, 1)], vec![check(14, 1)]],
        after: vec![peek(3), peek(14)],
    };
    explore(scenario, 2);
}
