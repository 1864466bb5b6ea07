//! One PostgreSQL, from outside.
#![expect(clippy::unwrap_used, reason = "clippy takes only functions marked as tests for tests")]

use std::path::Path;

use slidegate_testkit::Postgres;

fn exists(pid: u32) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}

/// The numbers of all its processes, by the folder that they work in.
fn processes(folder: &Path) -> Vec<u32> {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let inside = processes.filter(|process| {
        std::fs::read_link(process.path().join("cwd")).is_ok_and(|at| at.starts_with(folder))
    });
    inside.map(|process| process.file_name().to_str().unwrap().parse().unwrap()).collect()
}

fn one(value: &str) -> Vec<Vec<Option<String>>> {
    vec![vec![Some(value.to_owned())]]
}

#[test]
fn it_answers_and_is_gone_after_drop() {
    let postgres = Postgres::start();
    assert_eq!(postgres.sql("SELECT 1, NULL, ''"), [[Some("1".to_owned()), None, Some(String::new())]]);
    assert!(postgres.sql("SHOW server_version")[0][0].as_ref().unwrap().starts_with("15."));
    assert_eq!(postgres.url(), format!("postgres://postgres@127.0.0.1:{}/postgres", postgres.port()));

    let (pid, folder) = (postgres.pid(), postgres.folder().to_owned());
    assert!(exists(pid) && folder.exists() && processes(&folder).len() > 3);
    drop(postgres);
    assert!(!exists(pid) && !folder.exists());
    assert_eq!(processes(&folder), []);
}

#[test]
fn it_recovers_from_a_crash_on_the_same_port() {
    let postgres = Postgres::start();
    postgres.sql("CREATE TABLE t (n int)");
    postgres.sql("INSERT INTO t VALUES (7)");
    let (port, pid) = (postgres.port(), postgres.pid());
    let mut open = postgres.connect().unwrap();
    open.sql("BEGIN; INSERT INTO t VALUES (8)").unwrap();

    postgres.kill();
    assert!(!postgres.is_alive() && processes(postgres.folder()).is_empty());
    assert!(open.sql("COMMIT").is_err() && postgres.try_sql("SELECT 1").is_err());
    postgres.restart();
    assert_eq!(postgres.sql("SELECT n FROM t"), one("7"));
    assert_eq!(postgres.port(), port);
    assert_ne!(postgres.pid(), pid);
    assert!(postgres.log().contains("automatic recovery in progress"), "{}", postgres.log());
}
