//! Growth of a busy table without autovacuum.

use slidegate_testkit::until;

use super::callers::{Application, CALLERS, KEYS, run_callers};
use super::rig::Rig;
use crate::sample::count;

const DECISIONS: usize = 1_000_000;

pub(crate) fn report(rig: &Rig) {
    rig.empty();
    println!(
        "\n| decisions over 1,000 keys | rows | dead rows | pages of 8 kB | of the index | updates | within a page |"
    );
    println!("|---|---|---|---|---|---|---|");
    let mut made = 0;
    for part in [10 * KEYS, DECISIONS / 10, DECISIONS / 2, DECISIONS] {
        eprintln!("a million decisions, up to {part} …");
        let application = Application::new(rig, 2);
        // Measures the dead rows that updates leave behind, independent of the autovacuum schedule.
        rig.server.sql("ALTER TABLE slidegate.ephemeral SET (autovacuum_enabled = off)");
        let decisions = (part - made).next_multiple_of(CALLERS);
        run_callers(rig, &application, KEYS, decisions);
        made += decisions;
        drop(application);
        row(rig, made);
    }
}

fn row(rig: &Rig, made: usize) {
    // A backend reports its statistics when it ends, and a background task closes the connections.
    until("the connections have ended", || {
        rig.runtime.block_on(tokio::task::yield_now());
        let others = "backend_type = 'client backend' AND pid <> pg_backend_pid()";
        match rig.number(&format!("SELECT count(*) FROM pg_stat_activity WHERE {others}")) {
            0 => Ok(()),
            some => Err(format!("{some} connections")),
        }
    });
    let statistic = |column: &str| {
        let of = "relid = 'slidegate.ephemeral'::regclass";
        rig.number(&format!("SELECT {column} FROM pg_stat_user_tables WHERE {of}"))
    };
    let pages =
        |relation: &str| rig.number(&format!("SELECT pg_relation_size('slidegate.{relation}') / 8192"));
    let updates = statistic("n_tup_upd");
    println!(
        "| {made} | {} | {} | {} | {} | {updates} | {:.2} % |",
        rig.number("SELECT count(*) FROM slidegate.ephemeral"),
        statistic("n_dead_tup"),
        pages("ephemeral"),
        pages("ephemeral_pkey"),
        100.0 * count(statistic("n_tup_hot_upd")) / count(updates)
    );
}
