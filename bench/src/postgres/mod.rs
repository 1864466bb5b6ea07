//! The PostgreSQL store beside a transaction of five statements and beside pgbench. `make bench-postgres` starts it.

mod bloat;
mod callers;
mod rig;
mod transaction;
mod upsert;

use callers::{Application, CALLERS, KEYS, Subject, ask};
use rig::Rig;
use transaction::Transaction;

use crate::figures::{Aim, Figures, Row};
use crate::sample::Sample;

const ROUNDS: usize = 7;
/// Connections of both sides: what Slidegate has unless told otherwise, and what applications often have.
const POOLS: [usize; 2] = [2, 16];

/// All of it, or one of its parts alone.
pub(crate) fn report(part: Option<&str>) {
    let is_wanted = |name| part.is_none_or(|part| part == name);
    let rig = Rig::start();
    println!("medians (least to most); beside PostgreSQL {}\n", rig.version());
    println!("| | slidegate | beside it | ratio | aim |\n|---|---|---|---|---|");
    if is_wanted("keys") {
        for pool in POOLS {
            beside_transaction(&rig, &Scenario { what: "1,000 keys", keys: KEYS, pool, aim: 5.0 });
        }
    }
    if is_wanted("hot") {
        for pool in POOLS {
            beside_transaction(&rig, &Scenario { what: "one hot key", keys: 1, pool, aim: 20.0 });
        }
    }
    if is_wanted("upsert") {
        beside_upsert(&rig);
    }
    if is_wanted("bloat") {
        bloat::report(&rig);
    }
}

/// Both figures of a subject, over all rounds.
#[derive(Default)]
struct Column {
    per_second: Figures,
    server_us: Figures,
}

impl Column {
    fn push(&mut self, sample: &Sample) {
        self.per_second.push(sample.per_second);
        self.server_us.push(sample.server_us);
    }
}

/// A row for each figure.
fn compare(what: &str, beside_what: &str, ours: &Column, theirs: &Column, aim: Aim) {
    let row = |figure: &str, here: &Figures, beside: &Figures, aim| {
        let what = format!("{what}: {figure}, {beside_what}");
        println!("{}", Row { what, here: here.clone(), beside: beside.clone(), aim });
    };
    row("decisions/s", &ours.per_second, &theirs.per_second, aim);
    row("server CPU µs each", &ours.server_us, &theirs.server_us, Aim::Open);
}

struct Scenario {
    what: &'static str,
    keys: usize,
    pool: usize,
    aim: f64,
}

/// Many callers of one store, and as many who share as large a pool and make their decisions themselves.
fn beside_transaction(rig: &Rig, scenario: &Scenario) {
    let Scenario { what, keys, pool, aim } = *scenario;
    rig.empty();
    let application = Application::new(rig, pool);
    let transaction = Transaction::new(rig, pool);
    warm_up(rig, &application, keys);
    warm_up(rig, &transaction, keys);
    let (mut ours, mut theirs) = (Column::default(), Column::default());
    for round in 1..=ROUNDS {
        eprintln!("{what}, {pool} connections, round {round} of {ROUNDS} …");
        ours.push(&ask(rig, &application, keys, 40_000));
        theirs.push(&ask(rig, &transaction, keys, 4000));
    }
    let what = format!("{CALLERS} callers, {what}, {pool} connections");
    compare(&what, "five statements", &ours, &theirs, Aim::AtLeast(aim));
}

/// Many callers of one store, and as many clients of pgbench that decide nothing.
fn beside_upsert(rig: &Rig) {
    rig.empty();
    let application = Application::new(rig, POOLS[0]);
    warm_up(rig, &application, KEYS);
    upsert::make(rig);
    let mut ours = Column::default();
    let mut theirs = upsert::CLIENTS.map(|_| Column::default());
    for round in 1..=ROUNDS {
        eprintln!("beside pgbench, round {round} of {ROUNDS} …");
        ours.push(&ask(rig, &application, KEYS, 40_000));
        for (clients, column) in upsert::CLIENTS.iter().zip(&mut theirs) {
            column.push(&upsert::run(rig, *clients));
        }
    }
    for (clients, column) in upsert::CLIENTS.iter().zip(&theirs) {
        let aim = if *clients == CALLERS { Aim::AtLeast(3.0) } else { Aim::Open };
        let beside = format!("pgbench's upserts by {clients} clients");
        compare(&format!("{CALLERS} callers, 1,000 keys"), &beside, &ours, column, aim);
    }
}

/// Until all rows are there, all connections open and what they cache is cached.
fn warm_up(rig: &Rig, subject: &impl Subject, keys: usize) {
    ask(rig, subject, keys, (8 * keys).max(4000));
}
