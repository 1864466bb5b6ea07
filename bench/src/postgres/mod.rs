//! The PostgreSQL store beside a transaction of five statements and beside pgbench. `make bench-postgres` starts it.

mod bloat;
mod callers;
mod rig;
mod transaction;
mod upsert;

use callers::{Application, CALLERS, KEYS, Subject, run_callers};
use rig::Rig;
use transaction::Transaction;

use crate::figures::{Aim, Figures, Row};
use crate::sample::Sample;

const ROUNDS: usize = 7;
/// Connections on both sides: Slidegate's default, and a common pool size in applications.
const POOLS: [usize; 2] = [2, 16];

/// Runs the named part, or all parts.
pub(crate) fn report(part: Option<&str>) {
    let is_wanted = |name| part.is_none_or(|part| part == name);
    let rig = Rig::start();
    println!("medians (least to most); beside PostgreSQL {}\n", rig.version());
    println!("| | slidegate | beside it | ratio | aim |\n|---|---|---|---|---|");
    if is_wanted("keys") {
        for pool in POOLS {
            beside_transaction(&rig, &Scenario { label: "1,000 keys", keys: KEYS, pool, aim: 5.0 });
        }
    }
    if is_wanted("hot") {
        for pool in POOLS {
            beside_transaction(&rig, &Scenario { label: "one hot key", keys: 1, pool, aim: 20.0 });
        }
    }
    if is_wanted("upsert") {
        beside_upsert(&rig);
    }
    if is_wanted("bloat") {
        bloat::report(&rig);
    }
}

/// Rate and server CPU time of a subject over all rounds.
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

/// Prints one row per figure.
fn compare(label: &str, peer: &str, slidegate: &Column, others: &Column, aim: Aim) {
    let row = |figure: &str, here: &Figures, beside: &Figures, aim| {
        let label = format!("{label}: {figure}, {peer}");
        println!("{}", Row { label, here: here.clone(), beside: beside.clone(), aim });
    };
    row("decisions/s", &slidegate.per_second, &others.per_second, aim);
    row("server CPU µs each", &slidegate.server_us, &others.server_us, Aim::Open);
}

struct Scenario {
    label: &'static str,
    keys: usize,
    pool: usize,
    aim: f64,
}

/// Compares callers that share one store with as many callers that run the transaction themselves on a pool of the same
/// size.
fn beside_transaction(rig: &Rig, scenario: &Scenario) {
    let Scenario { label, keys, pool, aim } = *scenario;
    rig.empty();
    let application = Application::new(rig, pool);
    let transaction = Transaction::new(rig, pool);
    warm_up(rig, &application, keys);
    warm_up(rig, &transaction, keys);
    let (mut slidegate, mut others) = (Column::default(), Column::default());
    for round in 1..=ROUNDS {
        eprintln!("{label}, {pool} connections, round {round} of {ROUNDS} …");
        slidegate.push(&run_callers(rig, &application, keys, 40_000));
        others.push(&run_callers(rig, &transaction, keys, 4000));
    }
    let label = format!("{CALLERS} callers, {label}, {pool} connections");
    compare(&label, "five statements", &slidegate, &others, Aim::AtLeast(aim));
}

/// Compares callers that share one store with pgbench clients that only count.
fn beside_upsert(rig: &Rig) {
    rig.empty();
    let application = Application::new(rig, POOLS[0]);
    warm_up(rig, &application, KEYS);
    upsert::make(rig);
    let mut slidegate = Column::default();
    let mut others = upsert::CLIENTS.map(|_| Column::default());
    for round in 1..=ROUNDS {
        eprintln!("beside pgbench, round {round} of {ROUNDS} …");
        slidegate.push(&run_callers(rig, &application, KEYS, 40_000));
        for (clients, column) in upsert::CLIENTS.iter().zip(&mut others) {
            column.push(&upsert::run(rig, *clients));
        }
    }
    for (clients, column) in upsert::CLIENTS.iter().zip(&others) {
        let aim = if *clients == CALLERS { Aim::AtLeast(3.0) } else { Aim::Open };
        let beside = format!("pgbench's upserts by {clients} clients");
        compare(&format!("{CALLERS} callers, 1,000 keys"), &beside, &slidegate, column, aim);
    }
}

/// Runs until all rows exist, all connections are open and the caches are filled.
fn warm_up(rig: &Rig, subject: &impl Subject, keys: usize) {
    run_callers(rig, subject, keys, (8 * keys).max(4000));
}
