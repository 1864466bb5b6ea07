use slidegate_testkit::{PgBouncer, Postgres, Standby, until};

use super::{exists, one, processes};

#[test]
fn a_standby_replicates_and_takes_over() {
    let primary = Postgres::builder().setting("max_connections", "30").tls().start();
    primary.sql("CREATE TABLE t AS SELECT 1 AS n");
    let standby = Standby::of(&primary);
    assert_eq!(standby.sql("SELECT n FROM t"), one("1"));
    primary.sql("SET synchronous_commit = off; INSERT INTO t VALUES (2)");
    standby.wait_in_sync(&primary);
    assert_eq!(standby.sql("SELECT count(*) FROM t"), one("2"));
    let error = standby.try_sql("INSERT INTO t VALUES (3)").unwrap_err();
    assert!(error.starts_with("ERROR 25006: cannot execute INSERT in a read-only"), "{error}");

    // The standby reconnects after its own crash.
    standby.kill();
    primary.sql("INSERT INTO t VALUES (3)");
    standby.restart();
    standby.wait_in_sync(&primary);

    primary.kill();
    standby.promote();
    standby.sql("INSERT INTO t VALUES (4)");
    assert_eq!(standby.sql("SELECT count(*) FROM t"), one("4"));
    let folder = standby.folder().to_owned();
    drop(standby);
    assert!(!folder.exists() && processes(&folder).is_empty());
}

#[test]
fn a_standby_can_be_synchronous() {
    let primary = Postgres::start();
    let _standby = Standby::build(Postgres::builder().setting("cluster_name", "second"), &primary);
    primary.sql("ALTER SYSTEM SET synchronous_standby_names = 'second'");
    primary.sql("SELECT pg_reload_conf()");
    until("the standby is synchronous", || {
        let rows = primary.sql("SELECT sync_state FROM pg_stat_replication");
        if rows == one("sync") { Ok(()) } else { Err(format!("{rows:?}")) }
    });
    primary.sql("CREATE TABLE t (n int)");
}

#[test]
fn pgbouncer_assigns_connections_per_transaction() {
    let postgres = Postgres::start();
    let bouncer = PgBouncer::builder().setting("default_pool_size", "1").in_front_of(&postgres);
    let own = "SELECT pg_backend_pid()";
    let (mut first, mut second) = (bouncer.connect().unwrap(), bouncer.connect().unwrap());
    let backend = first.sql(own).unwrap();
    assert_eq!(second.sql(own).unwrap(), backend, "both sessions use the one connection in turn");
    assert_eq!(super::psql(&bouncer.url(), "SELECT 1").stdout, b"1\n");

    // PgBouncer reconnects after a crash of the server. Until then it rejects clients.
    postgres.restart();
    let rows = until("PgBouncer has reconnected", || {
        bouncer.connect().and_then(|mut session| session.sql("SELECT 1"))
    });
    assert_eq!(rows, one("1"));

    bouncer.kill();
    assert!(bouncer.connect().is_err());
    bouncer.restart();
    assert_eq!(bouncer.sql("SELECT 1"), one("1"));
    let pid = bouncer.pid();
    drop(bouncer);
    assert!(!exists(pid));
}

#[test]
fn pgbouncer_in_session_mode_keeps_a_connection_per_session() {
    let postgres = Postgres::start();
    let bouncer = PgBouncer::builder().setting("pool_mode", "session").in_front_of(&postgres);
    let own = "SELECT pg_backend_pid()";
    let (mut first, mut second) = (bouncer.connect().unwrap(), bouncer.connect().unwrap());
    assert_ne!(first.sql(own).unwrap(), second.sql(own).unwrap());
}

#[test]
#[should_panic(expected = "unknown parameter: pgbouncer/no_such_setting")]
fn a_pgbouncer_that_fails_to_start_reports_its_error() {
    PgBouncer::builder().setting("no_such_setting", "1").in_front_of(&Postgres::start());
}
