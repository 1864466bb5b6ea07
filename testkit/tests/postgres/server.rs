use std::net::TcpListener;
use std::thread;

use slidegate_testkit::{Postgres, until};

use super::{exists, is_mounted_in, one, processes, psql};

#[test]
fn a_server_responds_and_is_removed_on_drop() {
    let postgres = Postgres::start();
    let rows = postgres.sql("SELECT 1, NULL, ''; SELECT E'a\\nü'");
    assert_eq!(rows[0], [Some("1".to_owned()), None, Some(String::new())]);
    assert_eq!(rows[1..], one("a\nü"));
    assert!(postgres.sql("SHOW server_version")[0][0].as_ref().unwrap().starts_with("15."));
    assert_eq!(postgres.sql("CREATE TABLE t (n int UNIQUE); INSERT INTO t VALUES (1)"), Vec::<Vec<_>>::new());
    let error = postgres.try_sql("INSERT INTO t VALUES (1)").unwrap_err();
    assert!(error.starts_with("ERROR 23505: duplicate key"), "{error}");

    assert_eq!(postgres.url(), format!("postgres://postgres@127.0.0.1:{}/postgres", postgres.port()));
    assert_eq!(psql(&postgres.url(), "SELECT n FROM t").stdout, b"1\n");

    let (pid, folder) = (postgres.pid(), postgres.folder().to_owned());
    assert!(exists(pid) && folder.exists() && processes(&folder).len() > 3);
    drop(postgres);
    assert!(!exists(pid) && !folder.exists() && !is_mounted_in(&folder));
    assert_eq!(processes(&folder), []);
}

#[test]
fn several_servers_start_concurrently() {
    let starting: Vec<_> = (0..4).map(|_| thread::spawn(Postgres::start)).collect();
    let started: Vec<_> = starting.into_iter().map(|starting| starting.join().unwrap()).collect();
    for (number, postgres) in started.iter().enumerate() {
        postgres.sql(&format!("CREATE TABLE t AS SELECT {number} AS n"));
    }
    for (number, postgres) in started.iter().enumerate() {
        assert_eq!(postgres.sql("SELECT n FROM t"), one(&number.to_string()));
    }
}

#[test]
fn settings_apply_and_can_be_changed() {
    let quoted = "%m it's ";
    let builder = Postgres::builder().setting("max_connections", "50").setting("log_line_prefix", quoted);
    let postgres = builder.start();
    assert_eq!(postgres.sql("SHOW max_connections"), one("50"));
    assert_eq!(postgres.sql("SHOW log_line_prefix"), one(quoted));
    assert_eq!(postgres.sql("SHOW fsync"), one("off"));
    postgres.sql("ALTER SYSTEM SET max_connections = 40");
    postgres.restart();
    assert_eq!(postgres.sql("SHOW max_connections"), one("40"));

    let durable = Postgres::builder().durable().start();
    assert_eq!(durable.sql("SHOW fsync"), one("on"));
    assert!(!is_mounted_in(durable.folder()));
}

#[test]
fn every_user_except_the_superuser_needs_a_password() {
    let postgres = Postgres::start();
    postgres.sql("CREATE ROLE guest LOGIN PASSWORD 'secret'");
    assert_eq!(psql(&postgres.url_as("guest", "secret"), "SELECT current_user").stdout, b"guest\n");
    let rejected = psql(&postgres.url_as("guest", "guess"), "SELECT 1");
    assert!(String::from_utf8(rejected.stderr).unwrap().contains("password authentication failed"));
}

#[test]
fn the_server_listens_on_a_unix_socket() {
    let postgres = Postgres::start();
    let socket = postgres.socket_folder().to_str().unwrap();
    let connection = format!("host={socket} port={} user=postgres", postgres.port());
    assert_eq!(psql(&connection, "SELECT inet_server_addr() IS NULL").stdout, b"t\n");
}

#[test]
fn tls_clients_that_trust_the_authority_connect() {
    let postgres = Postgres::builder().tls().access("hostnossl all guest all reject").start();
    postgres.sql("CREATE ROLE guest LOGIN PASSWORD 'secret'");
    let query = |authority: &std::path::Path| {
        let url = postgres.url_as("guest", "secret");
        let url = format!("{url}?sslmode=verify-full&sslrootcert={}", authority.display());
        psql(&url, "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()").stdout
    };
    assert_eq!(std::fs::read(postgres.tls().ca_path()).unwrap(), postgres.tls().ca_pem());
    assert_eq!(query(&postgres.tls().ca_path()), b"t\n");
    let other = Postgres::builder().tls().start();
    assert_eq!(query(&other.tls().ca_path()), b"");

    let plain = format!("{}?sslmode=disable", postgres.url_as("guest", "secret"));
    assert_eq!(psql(&plain, "SELECT 1").stdout, b"", "the additional line of pg_hba.conf rejects it");
}

#[test]
#[should_panic(expected = "unrecognized configuration parameter")]
fn a_server_that_fails_to_start_reports_its_error() {
    Postgres::builder().setting("no_such_setting", "1").start();
}

#[test]
#[should_panic(expected = "found no port in 20 attempts")]
fn a_server_whose_port_is_taken_tries_others() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    // Every attempt uses the taken port.
    Postgres::builder().setting("port", &port).start();
}

#[test]
fn a_restart_waits_for_its_port() {
    let postgres = Postgres::start();
    postgres.kill();
    let taken = TcpListener::bind(postgres.address()).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| postgres.restart());
        until("the server has failed to bind its port", || match postgres.log() {
            log if log.contains("Address already in use") => Ok(()),
            log => Err(log),
        });
        drop(taken);
    });
    assert_eq!(postgres.sql("SELECT 1"), one("1"));
}
