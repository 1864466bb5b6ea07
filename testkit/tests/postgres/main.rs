//! PostgreSQL, standbys and PgBouncer, tested from outside.
#![expect(clippy::unwrap_used, reason = "clippy takes only functions marked as tests for tests")]

mod cleanup;
mod disk;
mod faults;
mod peers;
mod server;

use std::path::Path;
use std::process::{Command, Output};

use slidegate_testkit::Rows;

fn exists(pid: u32) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}

/// Returns the IDs of all processes that run in a folder.
fn processes(folder: &Path) -> Vec<u32> {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let inside = processes.filter(|process| {
        std::fs::read_link(process.path().join("cwd")).is_ok_and(|at| at.starts_with(folder))
    });
    inside.map(|process| process.file_name().to_str().unwrap().parse().unwrap()).collect()
}

fn is_mounted_in(folder: &Path) -> bool {
    std::fs::read_to_string("/proc/mounts").unwrap().contains(folder.to_str().unwrap())
}

/// Runs a query with PostgreSQL's own client.
fn psql(connection: &str, sql: &str) -> Output {
    Command::new("psql").args(["-XAtq", "-c", sql, connection]).output().unwrap()
}

fn one(value: &str) -> Rows {
    vec![vec![Some(value.to_owned())]]
}
