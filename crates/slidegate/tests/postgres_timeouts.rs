//! The server itself ends a call of the PostgreSQL store, even after its caller has gone.

#![cfg(feature = "postgres")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::time::Duration;

use slidegate::store::{PostgresStore, StoreLimiter};
use slidegate::{Clock, ManualClock, Policy, SystemClock};
use slidegate_testkit::{PgBouncer, Postgres};

const BUDGET: Duration = Duration::from_millis(500);
/// A budget whose eighth, by which the server's timeout is shorter, suffices for the response on a busy machine.
const LARGE_BUDGET: Duration = Duration::from_secs(4);

/// Connects a limiter with a frozen clock, so that nothing expires.
async fn connect(url: &str, budget: Duration) -> StoreLimiter<PostgresStore> {
    let builder = PostgresStore::builder(url).unwrap().budget(budget).connections(1);
    StoreLimiter::new(builder.time_from(ManualClock::at(1_800_000_000_000)).connect().await.unwrap())
}

/// Slows decisions about new keys and single peeks down to an hour.
fn slow_down(server: &Postgres) {
    let _ = server.sql(
        "CREATE OR REPLACE FUNCTION slidegate.clean_ephemeral(pages int, at_ms bigint) RETURNS bigint
           LANGUAGE sql AS 'SELECT 1::bigint FROM pg_sleep(3600)'",
    );
    let _ = server.sql(
        "CREATE OR REPLACE FUNCTION slidegate.run(rec bigint[], which int[], ops bigint[], op_at int[], now_ms bigint, grain bigint,
           OUT allowed boolean[], OUT before bigint[], OUT sizes int[], OUT after bigint[], OUT expires_ms bigint, OUT is_invalidation boolean)
           LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(3600); END'",
    );
}

/// Returns the number of calls that the server still executes. A closed connection stays while its statement runs.
fn busy(server: &Postgres) -> String {
    let calls = "SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND query LIKE '%slidegate._%'
      AND pid <> pg_backend_pid()";
    server.sql(calls)[0][0].clone().unwrap()
}

async fn check_calls_end(server: &Postgres, url: &str) {
    let limiter = connect(url, BUDGET).await;
    slow_down(server);
    let [sliding, bucket] =
        [["10/1h"], ["10/1h token-bucket"]].map(|quotas| Policy::parse("api", quotas).unwrap());
    for policy in [&sliding, &bucket] {
        let errors = [limiter.check(policy.key("new")).await, limiter.peek(policy.key("new")).await];
        for error in errors.map(Result::unwrap_err) {
            assert!(error.is_transient(), "{error}");
        }
        // Later calls on the same connection fail too.
        let keys: Vec<String> = (0..1000).map(|number| number.to_string()).collect();
        let checks: Vec<_> = keys.iter().map(|key| policy.key(key)).collect();
        for error in limiter.check_many(&checks).await.into_iter().map(Result::unwrap_err) {
            assert!(error.is_transient(), "{error}");
        }
    }
    for _ in 0..3000 {
        if busy(server) == "0" {
            // The cancelled calls counted nothing.
            assert_eq!(server.sql("SELECT count(*) FROM slidegate.ephemeral")[0][0].as_deref(), Some("0"));
            return;
        }
        // The server ends the calls by itself, without an event to wait for.
        SystemClock::default().sleep(10).await;
    }
    panic!("{} calls still run long after their callers have gone", busy(server));
}

#[tokio::test]
async fn the_server_ends_a_call_after_its_budget() {
    let server = Postgres::start();
    check_calls_end(&server, &server.url()).await;
}

/// The timeout setting is part of the call and does not depend on the same connection.
#[tokio::test]
async fn the_server_ends_a_call_that_came_through_a_pool() {
    let server = Postgres::start();
    let bouncer = PgBouncer::builder().setting("default_pool_size", "4").in_front_of(&server);
    check_calls_end(&server, &bouncer.url()).await;
}

#[tokio::test]
async fn a_locked_row_costs_at_most_the_budget_and_spends_nothing() {
    let server = Postgres::start();
    let limiter = connect(&server.url(), LARGE_BUDGET).await;
    let policy = Policy::parse("api", ["1000/1h"]).unwrap();
    assert!(limiter.check(policy.key("a")).await.unwrap().is_allowed());
    let mut holder = server.connect().unwrap();
    holder.sql("BEGIN").unwrap();
    holder.sql("SELECT * FROM slidegate.ephemeral FOR UPDATE").unwrap();
    // The error reports that the call was cancelled and not counted.
    let error = limiter.check(policy.key("a")).await.unwrap_err();
    assert!(error.is_transient() && error.is_late() && !error.may_have_counted(), "{error}");
    // Other keys and peeks are not blocked.
    assert!(limiter.check(policy.key("b")).await.unwrap().is_allowed());
    assert_eq!(limiter.peek(policy.key("a")).await.unwrap().quotas()[0].used, 1);
    holder.sql("ROLLBACK").unwrap();
    assert_eq!(limiter.peek(policy.key("a")).await.unwrap().quotas()[0].used, 1);
}

/// The part of a batch within the budget is decided, the rest is not executed, and the results distinguish both.
#[tokio::test]
async fn a_batch_ends_with_its_budget() {
    let server = Postgres::start();
    let limiter = connect(&server.url(), LARGE_BUDGET).await;
    // Each transaction takes most of the batch's time.
    let _ = server.sql(
        "CREATE OR REPLACE FUNCTION slidegate.clean_ephemeral(pages int, at_ms bigint) RETURNS bigint
           LANGUAGE sql AS 'SELECT 0::bigint FROM pg_sleep(2.4)'",
    );
    let policy = Policy::parse("api", ["10/1h"]).unwrap();
    let keys: Vec<String> = (0..1000).map(|number| number.to_string()).collect();
    let checks: Vec<_> = keys.iter().map(|key| policy.key(key)).collect();
    let decided = limiter.check_many(&checks).await;
    let (done, not_done) = decided.split_at(64);
    assert!(done.iter().flatten().filter(|decision| decision.is_allowed()).count() == 64, "{:?}", done[0]);
    for error in not_done.iter().map(|decision| decision.as_ref().unwrap_err()) {
        assert!(error.is_transient() && error.is_late() && !error.may_have_counted(), "{error}");
    }
    assert_eq!(server.sql("SELECT count(*) FROM slidegate.ephemeral")[0][0].as_deref(), Some("64"));
}
