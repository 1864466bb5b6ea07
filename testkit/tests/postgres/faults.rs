use std::process::Command;
use std::thread;

use slidegate_testkit::{FaultProxy, PgSession, Postgres, until};

use super::{exists, one, processes};

#[test]
fn a_server_recovers_from_a_crash_on_the_same_port() {
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

/// A busy backend does not notice the death of its postmaster and would write beside the next server.
#[test]
fn a_restart_ends_backends_that_outlived_the_postmaster() {
    let postgres = Postgres::start();
    let busy = busy_backend(&postgres);
    let pid = postgres.pid().to_string();
    assert!(Command::new("kill").args(["-KILL", &pid]).status().unwrap().success());
    until(
        "the postmaster is dead",
        || if postgres.is_alive() { Err("it is alive".to_owned()) } else { Ok(()) },
    );
    assert!(processes(postgres.folder()).contains(&busy));
    postgres.restart();
    assert!(!processes(postgres.folder()).contains(&busy));
    assert_eq!(postgres.sql("SELECT 1"), one("1"));
}

/// Process ID of a backend that runs until it is killed.
pub(crate) fn busy_backend(postgres: &Postgres) -> u32 {
    let mut session = postgres.connect().unwrap();
    let pid = session.sql("SELECT pg_backend_pid()").unwrap()[0][0].clone().unwrap();
    thread::spawn(move || session.sql("DO 'BEGIN LOOP END LOOP; END'"));
    until("the backend is busy", || {
        let query = format!("SELECT 1 FROM pg_stat_activity WHERE pid = {pid} AND query LIKE 'DO%'");
        if postgres.sql(&query).is_empty() { Err("not yet".to_owned()) } else { Ok(()) }
    });
    pid.parse().unwrap()
}

#[test]
fn all_processes_stop_until_the_continue_signal() {
    let postgres = Postgres::start();
    let mut session = postgres.connect().unwrap();
    session.sql("SELECT 1").unwrap();
    let states = || {
        let pids = processes(postgres.folder());
        let stats = pids.iter().map(|pid| std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap());
        stats.map(|stat| stat.rsplit_once(") ").unwrap().1.chars().next().unwrap()).collect::<String>()
    };
    postgres.stop_signal();
    assert!(states().len() > 4 && states().chars().all(|state| state == 'T'), "{}", states());
    let request = thread::spawn(move || session.sql("SELECT 2"));
    postgres.continue_signal();
    assert_eq!(request.join().unwrap().unwrap(), one("2"));

    // A stopped server can be killed.
    postgres.stop_signal();
    let (pid, folder) = (postgres.pid(), postgres.folder().to_owned());
    drop(postgres);
    assert!(!exists(pid) && processes(&folder).is_empty() && !folder.exists());
}

#[test]
fn the_proxy_can_cut_a_response() {
    let postgres = Postgres::start();
    postgres.sql("CREATE TABLE t (n int)");
    let proxy = FaultProxy::start(postgres.address());
    let mut session = PgSession::open(proxy.address()).unwrap();
    assert_eq!(session.sql("SELECT 1").unwrap(), one("1"));
    proxy.cut_next_reply();
    assert!(session.sql("INSERT INTO t VALUES (1)").is_err());
    assert_eq!(postgres.sql("SELECT count(*) FROM t"), one("1"));
}
