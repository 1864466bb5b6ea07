//! Access to PostgreSQL: roles, permissions, TLS and the migration of the schema.

#![cfg(feature = "postgres")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::sync::Arc;
use std::time::Duration;

use slidegate::store::{PostgresStore, StoreLimiter};
use slidegate::{ManualClock, Policy, StoreError};
use slidegate_testkit::Postgres;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

const BUDGET: Duration = Duration::from_secs(20);
const NOW_MS: u64 = 1_800_000_000_000;

async fn connect(url: &str, clock: &ManualClock) -> Result<PostgresStore, StoreError> {
    PostgresStore::builder(url).unwrap().budget(BUDGET).time_from(clock.clone()).connect().await
}

/// Creates a role with only the documented permissions and returns its URL.
fn create_minimal_role(server: &Postgres) -> String {
    server.sql("CREATE ROLE app LOGIN PASSWORD 'word'");
    server.sql("GRANT USAGE ON SCHEMA slidegate TO app");
    server.sql("GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA slidegate TO app");
    server.url_as("app", "word")
}

fn script() -> String {
    PostgresStore::migration("slidegate").unwrap()
}

fn version(server: &Postgres) -> String {
    server.sql("SELECT slidegate.schema_version()")[0][0].clone().unwrap()
}

#[tokio::test]
async fn a_role_with_execute_permission_decides_peeks_and_cleans() {
    let server = Postgres::start();
    server.sql(&script());
    let url = create_minimal_role(&server);
    let clock = ManualClock::at(NOW_MS);
    for durable in [false, true] {
        let builder = PostgresStore::builder(&url).unwrap().budget(BUDGET).durable(durable);
        let store = builder.time_from(clock.clone()).connect().await.unwrap();
        let limiter = StoreLimiter::new(store);
        for quotas in [&["2/1s"][..], &["2/1s strict-window", "2/2s sliding-log", "2/3s token-bucket"]] {
            let policy = Policy::parse(&quotas.concat(), quotas.iter().copied()).unwrap();
            let check = policy.key("a");
            assert!(limiter.check(check).await.unwrap().is_allowed());
            assert!(limiter.check(check).await.unwrap().is_allowed());
            assert!(!limiter.check(check).await.unwrap().is_allowed());
            assert_eq!(limiter.peek(check).await.unwrap().quotas()[0].used, 2);
            let _ = limiter.refund(check).await.unwrap();
            assert!(limiter.check(check).await.unwrap().is_allowed());
            let _ = limiter.reset(check).await.unwrap();
            assert!(limiter.check(check.cost(2)).await.unwrap().is_allowed());
        }
    }
    clock.set(NOW_MS + 60_000);
    let store = connect(&url, &clock).await.unwrap();
    assert_eq!(store.clean().await.unwrap(), 4);
}

#[test]
fn a_role_with_execute_permission_cannot_access_tables() {
    let server = Postgres::start();
    server.sql(&script());
    let _ = create_minimal_role(&server);
    for statement in [
        "SELECT * FROM slidegate.ephemeral",
        "SELECT * FROM slidegate.durable",
        "SELECT * FROM slidegate.version",
        "DELETE FROM slidegate.ephemeral",
        "INSERT INTO slidegate.durable VALUES (gen_random_uuid(), 0, '{}')",
        "CREATE TABLE slidegate.mine ()",
        "DROP FUNCTION slidegate.schema_version()",
        "ALTER TABLE slidegate.durable SET UNLOGGED",
    ] {
        let error = server.try_sql(&format!("SET ROLE app; {statement}")).unwrap_err();
        assert!(error.starts_with("ERROR 42501"), "{statement}: {error}");
    }
    // The role's own functions do not shadow built-in ones, with any search path.
    let decided = server.sql(
        "CREATE FUNCTION public.cardinality(bigint[]) RETURNS int LANGUAGE sql AS 'SELECT 1/0';
         CREATE FUNCTION public.div(numeric, numeric) RETURNS numeric LANGUAGE sql AS 'SELECT 1/0';
         SET ROLE app;
         SET search_path = public, pg_catalog;
         SELECT allowed FROM slidegate.decide_ephemeral(ARRAY[gen_random_uuid()], '{1,2}', '{1}',
           '{1,1,1,5,5,60000,5,0}', '{1}', NULL, 1, 1000, NULL)",
    );
    assert_eq!(decided, [[Some("{t}".to_owned())]]);
}

#[tokio::test]
async fn the_migration_grants_no_permissions() {
    let server = Postgres::start();
    server.sql(&script());
    server.sql("CREATE ROLE stranger LOGIN PASSWORD 'word'");
    let url = server.url_as("stranger", "word");
    let error = connect(&url, &ManualClock::at(NOW_MS)).await.unwrap_err();
    assert!(!error.is_transient() && error.to_string().contains("(42501)"), "{error}");
    // Usage of the schema does not grant execution of its functions.
    server.sql("GRANT USAGE ON SCHEMA slidegate TO stranger");
    let error = connect(&url, &ManualClock::at(NOW_MS)).await.unwrap_err();
    assert!(!error.is_transient() && error.to_string().contains("(42501)"), "{error}");
}

#[tokio::test]
async fn connecting_fails_without_permission_to_create_the_schema() {
    let server = Postgres::start();
    server.sql("CREATE ROLE app LOGIN PASSWORD 'word'");
    let error = connect(&server.url_as("app", "word"), &ManualClock::at(NOW_MS)).await.unwrap_err();
    assert!(!error.is_transient() && error.to_string().contains("permission denied"), "{error}");
    let error = connect(&server.url_as("app", "wrong"), &ManualClock::at(NOW_MS)).await.unwrap_err();
    assert!(!error.is_transient() && error.to_string().contains("password"), "{error}");
    assert!(!error.to_string().contains("wrong"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_that_start_concurrently_create_one_schema() {
    let server = Postgres::start();
    let clock = ManualClock::at(NOW_MS);
    let url = Arc::new(server.url());
    let mut starting = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let (url, clock) = (Arc::clone(&url), clock.clone());
        starting.spawn(async move { StoreLimiter::new(connect(&url, &clock).await.unwrap()) });
    }
    let policy = Policy::parse("api", ["5/1h"]).unwrap();
    let mut admitted = 0;
    for limiter in starting.join_all().await {
        admitted += u64::from(limiter.check(policy.key("a")).await.unwrap().is_allowed());
    }
    assert_eq!(admitted, 5);
    assert_eq!(version(&server), "7");
}

#[tokio::test]
async fn a_repeated_migration_keeps_all_counts() {
    let server = Postgres::start();
    let limiter = StoreLimiter::new(connect(&server.url(), &ManualClock::at(NOW_MS)).await.unwrap());
    let policy = Policy::parse("api", ["2/1h"]).unwrap();
    assert!(limiter.check(policy.key("a")).await.unwrap().is_allowed());
    server.sql(&script());
    PostgresStore::builder(&server.url()).unwrap().migrate().await.unwrap();
    assert!(limiter.check(policy.key("a")).await.unwrap().is_allowed());
    assert!(!limiter.check(policy.key("a")).await.unwrap().is_allowed());
    assert_eq!(version(&server), "7");
}

/// In version 5, the shared document was in the table `note`.
#[test]
fn the_migration_from_version_5_keeps_the_shared_document() {
    let server = Postgres::start();
    server.sql(
        "CREATE SCHEMA slidegate;
         CREATE TABLE slidegate.version (version int NOT NULL, is_only boolean PRIMARY KEY DEFAULT true);
         INSERT INTO slidegate.version (version) VALUES (5);
         CREATE TABLE slidegate.note (version bigint NOT NULL, text text NOT NULL,
           is_only boolean PRIMARY KEY DEFAULT true);
         INSERT INTO slidegate.note (version, text) VALUES (7, 'changes')",
    );
    server.sql(&script());
    let document = server.sql("SELECT * FROM slidegate.read_shared_document(0)");
    assert_eq!(document, [[Some("7".to_owned()), Some("changes".to_owned())]]);
    assert_eq!(version(&server), "7");
}

#[tokio::test]
async fn a_newer_schema_is_rejected_and_unchanged() {
    let server = Postgres::start();
    server.sql(&script());
    server.sql("UPDATE slidegate.version SET version = 1000");
    let clock = ManualClock::at(NOW_MS);
    for error in [
        connect(&server.url(), &clock).await.unwrap_err(),
        PostgresStore::builder(&server.url()).unwrap().migrate().await.unwrap_err(),
    ] {
        assert!(!error.is_transient(), "{error}");
        let expected = "postgres: schema slidegate has version 1000, but this program supports version 7";
        assert!(error.to_string().starts_with(expected), "{error}");
    }
    assert!(server.try_sql(&script()).unwrap_err().contains("has version 1000"));
    assert_eq!(version(&server), "1000");
}

#[tokio::test]
async fn schemas_count_separately() {
    let server = Postgres::start();
    let policy = Policy::parse("api", ["1/1h"]).unwrap();
    for schema in ["one", "other"] {
        let builder = PostgresStore::builder(&server.url()).unwrap().schema(schema).unwrap().budget(BUDGET);
        let limiter = StoreLimiter::new(builder.connect().await.unwrap());
        assert!(limiter.check(policy.key("a")).await.unwrap().is_allowed());
        assert!(!limiter.check(policy.key("a")).await.unwrap().is_allowed());
    }
}

#[tokio::test]
async fn tls_requires_a_certificate_of_the_given_authority() {
    let server = Postgres::builder().tls().start();
    let clock = ManualClock::at(NOW_MS);
    let ca = server.tls().ca_path();
    let url = format!("{}?sslmode=require&ca={}", server.url(), ca.display());
    let store = connect(&url, &clock).await.unwrap();
    let policy = Policy::parse("api", ["1/1h"]).unwrap();
    assert!(StoreLimiter::new(store).check(policy.key("a")).await.unwrap().is_allowed());
    let encrypted = "SELECT count(*) FROM pg_stat_ssl s JOIN pg_stat_activity a USING (pid)
        WHERE s.ssl AND a.usename = 'postgres'";
    assert_ne!(server.sql(encrypted)[0][0].as_deref(), Some("0"));
    // Without the authority, with required and with preferred TLS.
    for mode in ["require", "prefer"] {
        let url = format!("{}?sslmode={mode}", server.url());
        let error = connect(&url, &clock).await.unwrap_err();
        assert!(error.to_string().contains("certificate"), "{error}");
    }
    assert!(connect(&format!("{}?sslmode=disable", server.url()), &clock).await.is_ok());
    let plain = Postgres::start();
    assert!(connect(&format!("{}?sslmode=require", plain.url()), &clock).await.is_err());
}

#[tokio::test]
async fn a_port_of_another_service_is_reported() {
    for (response, expected) in [
        (
            "HTTP/1.1 400 Bad Request\r\n\r\n",
            "the server does not speak the PostgreSQL protocol; check the port",
        ),
        ("", "the server closed the connection without a reply; check the port"),
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let service = tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                let _ = stream.read(&mut [0; 100]).await;
                let _ = stream.write_all(response.as_bytes()).await;
            }
        });
        for mode in ["prefer", "disable"] {
            let url = format!("postgres://{address}/postgres?sslmode={mode}");
            let error = connect(&url, &ManualClock::at(NOW_MS)).await.unwrap_err();
            assert_eq!(error.to_string(), format!("postgres at {address}: {expected}"));
            assert!(error.is_transient());
        }
        service.abort();
    }
}
