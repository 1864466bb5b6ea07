//! The whole table under a model checker, which runs small programs in every order that the memory model allows.
//!
//! Whatever the order, what threads are told and what is counted in the end has to be what it would be if their steps
//! had been taken one after the other, in one of the ways to do that. So no limit is exceeded, nothing is lost, nothing
//! is counted for anybody else, and nobody is evicted who would not have been.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use loom::model::Builder;
use loom::thread;
use slidegate_core::{Decision, Policy, Verb};

use super::super::settings::Settings;
use super::super::slots::KeyId;
use super::super::table::Table;
use crate::clock::ManualClock;

const MINUTE: u64 = 60_000;
/// The beginning of a window.
const NOW: u64 = 30_000_000 * MINUTE;

/// Limits of three units, and what they are changed to.
struct Form {
    quota: &'static str,
    changed: &'static str,
    unit: u64,
}

const PACKED: Form = Form { quota: "3/1m", changed: "4/1m", unit: 1 };
const WIDE: Form = Form { quota: "30000000000/1m", changed: "40000000000/1m", unit: 10_000_000_000 };
/// Packed as well, but never decided by the short way.
const FIXED: Form = Form { quota: "3/1m fixed-window", changed: "4/1m fixed-window", unit: 1 };
/// Decided under the lock, beside words that are not.
const BUCKET: Form = Form { quota: "3/1m token-bucket", changed: "4/1m token-bucket", unit: 1 };
/// Both stand in part beside the slot; the one is decided without the lock, the other changes while its word does not.
const MIXED: Form =
    Form { quota: "30000000000/1m", changed: "40000000000/1m token-bucket", unit: 10_000_000_000 };

/// One step of a thread.
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

/// What happens before, what each thread does, and what is asked afterwards.
#[derive(Default)]
struct Scenario {
    max_keys: usize,
    before: Vec<Step>,
    threads: Vec<Vec<Step>>,
    after: Vec<Step>,
}

/// Everything that can be seen: what each thread is told, what is said afterwards, how many keys there are and how many
/// were evicted.
#[derive(Debug, PartialEq)]
struct Seen {
    told: Vec<Vec<Decision>>,
    after: Vec<Decision>,
    keys: usize,
    evicted: u64,
}

/// A table whose keys are their numbers: the tens are the page, and the whole is the tag.
struct Subject {
    table: Table,
    policies: [Policy; 2],
    unit: u64,
    /// Whoever asks at an earlier moment is late.
    clock: ManualClock,
}

impl Subject {
    fn new(scenario: &Scenario, form: &Form) -> Self {
        let mut settings = Settings::default();
        settings.max_keys = scenario.max_keys;
        let policies = [form.quota, form.changed].map(|quota| Policy::parse("api", [quota]).unwrap());
        let steps = scenario.before.iter().chain(scenario.threads.iter().flatten());
        let clock = ManualClock::at(steps.map(|step| step.now_ms).max().unwrap_or(NOW));
        let subject = Self { table: Table::new(settings), policies, unit: form.unit, clock };
        subject.take_all(&scenario.before);
        subject
    }

    fn take(&self, step: &Step) -> Decision {
        let id = KeyId { tag: 2 + step.key, home_line: (step.key / 10) as u32 };
        let policy = &self.policies[usize::from(step.is_changed)];
        self.table.execute(policy, id, step.verb, step.now_ms, step.units * self.unit, &self.clock).unwrap()
    }

    fn take_all(&self, steps: &[Step]) -> Vec<Decision> {
        steps.iter().map(|step| self.take(step)).collect()
    }

    fn see(&self, told: Vec<Vec<Decision>>, after: &[Step]) -> Seen {
        let (keys, evicted) = (self.table.keys(), self.table.evicted());
        Seen { told, after: self.take_all(after), keys, evicted }
    }
}

/// Every way to take the steps of all threads one after the other: which thread's is the next.
fn orders(left: &mut [usize], order: &mut Vec<usize>, each: &mut impl FnMut(&[usize])) {
    if left.iter().all(|left| *left == 0) {
        return each(order);
    }
    for thread in 0..left.len() {
        if left[thread] > 0 {
            left[thread] -= 1;
            order.push(thread);
            orders(left, order, each);
            order.pop();
            left[thread] += 1;
        }
    }
}

fn one_after_the_other(scenario: &Scenario, form: &Form) -> Vec<Seen> {
    let mut all = Vec::new();
    let mut left: Vec<usize> = scenario.threads.iter().map(Vec::len).collect();
    orders(&mut left, &mut Vec::new(), &mut |order| {
        let subject = Subject::new(scenario, form);
        let mut told = vec![Vec::new(); scenario.threads.len()];
        for thread in order {
            let step = &scenario.threads[*thread][told[*thread].len()];
            told[*thread].push(subject.take(step));
        }
        all.push(subject.see(told, &scenario.after));
    });
    all
}

fn at_once(scenario: &Arc<Scenario>, form: &Form) -> Seen {
    let subject = Arc::new(Subject::new(scenario, form));
    let spawn = |number: usize| {
        let (subject, scenario) = (subject.clone(), scenario.clone());
        thread::spawn(move || subject.take_all(&scenario.threads[number]))
    };
    let others: Vec<_> = (1..scenario.threads.len()).map(spawn).collect();
    let mut told = vec![subject.take_all(&scenario.threads[0])];
    told.extend(others.into_iter().map(|thread| thread.join().unwrap()));
    subject.see(told, &scenario.after)
}

/// Runs the scenario in every form and in every order in which threads are interrupted at most `interruptions` times
/// where they need not be.
fn explore(scenario: Scenario, interruptions: usize) {
    let scenario = Arc::new(scenario);
    let mut model = Builder::new();
    model.preemption_bound = Some(interruptions);
    model.max_branches = 10_000;
    let changes = scenario.threads.iter().flatten().any(|step| step.is_changed);
    let forms = [&PACKED, &WIDE, &FIXED, &BUCKET].into_iter().chain(changes.then_some(&MIXED));
    for form in forms {
        let [expected, found] = [(); 2].map(|()| Arc::new(Mutex::new(Vec::new())));
        // Apart, as atomics of a model exist only in its runs, and each run has to begin like the one before.
        model.check({
            let (scenario, expected) = (scenario.clone(), expected.clone());
            move || *lock(&expected) = one_after_the_other(&scenario, form)
        });
        model.check({
            let (scenario, expected, found) = (scenario.clone(), expected.clone(), found.clone());
            move || {
                let seen = at_once(&scenario, form);
                let (expected, mut found) = (lock(&expected), lock(&found));
                assert!(expected.contains(&seen), "{}: {seen:#?} is none of {expected:#?}", form.quota);
                if !found.contains(&seen) {
                    found.push(seen);
                }
            }
        });
        let (expected, found) = (lock(&expected), lock(&found));
        assert!(
            expected.iter().all(|seen| found.contains(seen)),
            "{}: not every order was tried",
            form.quota
        );
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[test]
fn checks_of_one_key_are_counted_each_or_denied() {
    let scenario = Scenario {
        max_keys: 4,
        before: vec![check(1, 1)],
        threads: vec![vec![check(1, 1), check(1, 1)], vec![check(1, 1)]],
        after: vec![peek(1)],
    };
    explore(scenario, 3);
}

#[test]
fn a_new_key_takes_one_place() {
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
    // Three at once take the model long, for a refund needs the lock.
    for (threads, interruptions) in
        [(vec![vec![check(1, 2)], refund()], 3), (vec![vec![check(1, 2)], refund(), vec![check(1, 1)]], 1)]
    {
        let scenario = Scenario { max_keys: 4, before: vec![check(1, 2)], threads, after: vec![peek(1)] };
        explore(scenario, interruptions);
    }
}

#[test]
fn a_reset_forgets_what_was_counted_before_and_nothing_after() {
    let scenario = Scenario {
        max_keys: 4,
        before: vec![check(1, 1)],
        threads: vec![vec![check(1, 1)], vec![step(Verb::Reset, 1, 0)]],
        after: vec![peek(1)],
    };
    explore(scenario, 3);
}

#[test]
fn a_slot_that_is_reset_and_taken_by_another_key_is_not_mistaken() {
    let scenario = Scenario {
        max_keys: 4,
        before: vec![check(1, 1)],
        threads: vec![vec![check(1, 1)], vec![step(Verb::Reset, 1, 0), check(2, 1)]],
        after: vec![peek(1), peek(2)],
    };
    explore(scenario, 3);
}

/// The same as above when the check only reads, and what it reads is another's.
#[test]
fn a_denial_is_said_by_ones_own_counts() {
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

/// The same when what stands beside the slot changes for another while that one's word stays.
#[test]
fn what_another_changes_beside_its_word_is_not_taken_for_ones_own() {
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

/// Once wrong: a new key was denied by the counts of whoever had the slot before.
#[test]
fn a_newcomer_is_not_denied_by_the_counts_of_a_former_owner() {
    let scenario = Scenario {
        max_keys: 4,
        before: vec![check(1, 3)],
        threads: vec![vec![check(2, 1)], vec![step(Verb::Reset, 1, 0), check(2, 1)]],
        after: vec![peek(1), peek(2)],
    };
    explore(scenario, 2);
}

#[test]
fn a_full_page_evicts_and_the_evicted_begins_anew() {
    let scenario = Scenario {
        max_keys: 4,
        before: vec![check(1, 1), check(2, 2), check(3, 2), check(4, 2)],
        threads: vec![vec![check(1, 1)], vec![check(5, 1)]],
        after: [1, 2, 3, 4, 5].map(peek).to_vec(),
    };
    explore(scenario, 2);
}

/// Key 1 has the least to lose until it is denied.
#[test]
fn nobody_is_evicted_who_is_denied_meanwhile() {
    let scenario = Scenario {
        max_keys: 4,
        before: vec![check(1, 1), check(2, 1).at(NOW + MINUTE), check(3, 3), check(4, 3)],
        threads: vec![vec![check(1, 2)], vec![check(5, 1)]],
        after: [1, 2, 3, 4, 5].map(peek).to_vec(),
    };
    explore(scenario, 2);
}

#[test]
fn nobody_is_swept_who_counts_again_meanwhile() {
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
fn windows_change_for_all_or_nobody() {
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

/// Two pages evict at the same time, as the table is full.
#[test]
fn there_are_never_more_keys_than_may_be() {
    let scenario = Scenario {
        max_keys: 5,
        before: vec![check(1, 1), check(2, 1), check(11, 1), check(12, 1), check(13, 1)],
        threads: vec![vec![check(3, 1)], vec![check(14, 1)]],
        after: vec![peek(3), peek(14)],
    };
    explore(scenario, 2);
}
