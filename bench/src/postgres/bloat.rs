//! What a busy table looks like, with nobody to clean up behind it.

use slidegate_testkit::until;

use super::callers::{Application, CALLERS, KEYS, ask};
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
        // What is measured is what updates leave behind, and not how often somebody comes to remove it.
        rig.server.sql("ALTER TABLE slidegate.ephemeral SET (autovacuum_enabled = off)");
        let decisions = (part - made).next_multiple_of(CALLERS);
        ask(rig, &application, KEYS, decisions);
        made += decisions;
        drop(application);
        row(rig, made);
    }
}

fn row(rig: &Rig, made: usize) {
    // Connections tell what they did when they end, and their end is told by tasks.
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
