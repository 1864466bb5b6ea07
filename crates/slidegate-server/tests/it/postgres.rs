//! Limits shared through a real PostgreSQL server.

use serde_json::json;
use slidegate_testkit::Postgres;

use crate::process::{ServeProcess, outcome, slidegate};

/// Budget of 20 s, so that a busy machine does not cause a fallback.
const LONG_BUDGET: &str = "budget_ms=20000";

fn serve(store: &str) -> ServeProcess {
    ServeProcess::start(slidegate().args(["serve", "--http", "127.0.0.1:0", "--store", store]))
}

fn run(verb: &str, store: &str, more: &[&str]) -> (i32, String, String) {
    outcome(slidegate().arg(verb).args(more).args(["--store", store]))
}

#[test]
fn two_servers_and_a_check_share_one_limit_exactly() {
    const LIMIT: usize = 50;
    let postgres = Postgres::start();
    for table in ["durable=false", "durable=true"] {
        let store = format!("{}?{LONG_BUDGET}&{table}", postgres.url());
        let servers = [serve(&store), serve(&store)];
        let body = json!({"quotas": [format!("{LIMIT}/1d sliding-log")], "key": "user:1"});
        let count_allowed = |server: &ServeProcess| -> usize {
            let decisions = (0..LIMIT / 2).map(|_| server.check(&body).decision());
            decisions.filter(|decision| decision["allowed"] == true).count()
        };
        let allowed: usize = std::thread::scope(|scope| {
            let clients: Vec<_> = servers
                .iter()
                .cycle()
                .take(8)
                .map(|server| scope.spawn(move || count_allowed(server)))
                .collect();
            clients.into_iter().map(|client| client.join().unwrap()).sum()
        });
        assert_eq!(allowed, LIMIT, "{table}");
        let quota = format!("{LIMIT}/1d sliding-log");
        let (code, stdout, stderr) = run("check", &store, &["user:1", "--quota", &quota]);
        assert!(code == 1 && stdout.starts_with("denied by 50/1d: retry in "), "{stdout}{stderr}");
    }
}

#[test]
fn a_role_that_may_only_call_functions_can_serve_check_and_clean() {
    let postgres = Postgres::start();
    let owner = postgres.url();
    let (code, script, stderr) = run("migrate", &owner, &["--print"]);
    assert_eq!((code, stderr.as_str()), (0, ""));
    assert_eq!(postgres.sql("SELECT to_regnamespace('slidegate')"), [[None]], "printing creates nothing");
    postgres.sql(&script);
    for _ in 0..2 {
        assert_eq!(run("migrate", &owner, &[]), (0, "the schema is up to date\n".into(), String::new()));
    }
    postgres.sql(
        "CREATE ROLE app LOGIN PASSWORD 'hush';
         GRANT USAGE ON SCHEMA slidegate TO app;
         GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA slidegate TO app",
    );
    let app = format!("{}?{LONG_BUDGET}&secret=hush", postgres.url_as("app", "hush"));
    let server = serve(&app);
    assert_eq!(server.startup_lines[1], format!("store: postgres://{}/postgres", postgres.address()));
    let body = json!({"policy": "api", "key": "a"});
    assert_eq!(server.check(&body).decision()["allowed"], true);
    assert_eq!(run("check", &app, &["a", "--quota", "1/1d"]).0, 0);
    assert_eq!(run("check", &app, &["a", "--quota", "1/1d"]).0, 1);
    assert_eq!(run("clean", &app, &[]), (0, "removed 0 expired keys\n".into(), String::new()));
    postgres.sql("UPDATE slidegate.ephemeral SET expires_ms = 1");
    assert_eq!(run("clean", &app, &[]), (0, "removed 2 expired keys\n".into(), String::new()));
    let (code, stdout, stderr) = run("migrate", &app, &[]);
    assert!(code == 2 && stdout.is_empty() && stderr.contains("permission denied"), "{stdout}{stderr}");
}

#[test]
fn an_unusable_database_is_rejected_with_the_reason_and_without_secrets() {
    let postgres = Postgres::start();
    let error_of = |verb: &str, store: &str, more: &[&str]| {
        let (code, stdout, stderr) = run(verb, store, more);
        assert_eq!((code, stdout.as_str()), (2, ""), "{stderr}");
        assert!(!stderr.contains("hush"), "{stderr}");
        stderr
    };
    let check = ["a", "--quota", "1/1d"];
    let wrong = postgres.url_as("hush", "hush");
    assert!(
        error_of("check", &wrong, &check)
            .contains("the server rejects the user, the password or this host (28P01)")
    );
    assert!(
        error_of("clean", "memory:", &[]).contains("--store: memory: is not PostgreSQL; write postgres://")
    );
    assert!(error_of("migrate", "redis://:hush@a", &[]).contains("--store: redis://a is not PostgreSQL"));
    assert!(error_of("clean", &postgres.url(), &[]).contains("has `slidegate migrate` been run?"));
    postgres.sql(&run("migrate", &postgres.url(), &["--print"]).1);
    postgres.sql("UPDATE slidegate.version SET version = 1000");
    assert!(
        error_of("check", &postgres.url(), &check)
            .contains("has version 1000, but this program supports version 7")
    );
    assert!(
        error_of("migrate", &postgres.url(), &[])
            .contains("has version 1000, but this program supports version 7")
    );
    postgres.kill();
    assert!(error_of("check", &postgres.url(), &check).contains("Connection refused"));
}
