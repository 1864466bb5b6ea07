//! Baseline: pgbench increments a row per statement and decides nothing.

use std::fs;
use std::process::Command;

use super::callers::KEYS;
use super::rig::Rig;
use crate::sample::{Sample, output};

/// Numbers of clients: as many as Slidegate has callers, and a number that suits the single core of the server better.
pub(crate) const CLIENTS: [usize; 2] = [64, 8];
const UPSERTS: usize = 24_000;

pub(crate) fn make(rig: &Rig) {
    rig.server.sql(
        "CREATE UNLOGGED TABLE upserts (name int PRIMARY KEY, hits bigint NOT NULL) WITH (fillfactor = 50)",
    );
    let script = format!(
        "\\set name random(1, {KEYS})\nINSERT INTO upserts VALUES (:name, 1)
           ON CONFLICT (name) DO UPDATE SET hits = upserts.hits + 1;\n"
    );
    fs::write(rig.server.folder().join("upsert.sql"), script.replace("\n           ", " "))
        .expect("the folder exists");
}

/// Runs pgbench with one thread on the callers' core.
pub(crate) fn run(rig: &Rig, clients: usize) -> Sample {
    let mut command = Command::new("pgbench");
    let (port, each) = (rig.server.port().to_string(), (UPSERTS / clients).to_string());
    command.args(["-h", "127.0.0.1", "-U", "postgres", "-p", &port, "-n", "-M", "prepared", "-j", "1"]);
    command.args(["-c", &clients.to_string(), "-t", &each, "-f"]).arg(rig.server.folder().join("upsert.sql"));
    command.arg("postgres");
    rig.sample(UPSERTS, || {
        let text = output(&mut command);
        let rate = text.lines().find_map(|line| line.strip_prefix("tps = ")?.split(' ').next()?.parse().ok());
        rate.unwrap_or_else(|| panic!("no figures of pgbench: {text}"))
    })
}
