//! Several processes share one limit in PostgreSQL exactly. The server's clock runs, so the windows are long enough
//! that nothing expires.

#![cfg(feature = "postgres")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use slidegate::Policy;
use slidegate::store::{PostgresStore, StoreLimiter};
use slidegate_testkit::Postgres;

const URL: &str = "SLIDEGATE_TEST_URL";
const QUOTA: &str = "SLIDEGATE_TEST_QUOTA";
const TASKS: &str = "SLIDEGATE_TEST_TASKS";
const CHECKS: &str = "SLIDEGATE_TEST_CHECKS";

/// Body of each process: concurrent tasks. Prints the number of admitted checks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "the other tests run it in processes of their own"]
async fn contender() {
    let [url, quota, tasks, checks] = [URL, QUOTA, TASKS, CHECKS].map(|name| std::env::var(name).unwrap());
    let builder = PostgresStore::builder(&url).unwrap().budget(Duration::from_secs(20));
    let limiter = Arc::new(StoreLimiter::new(builder.connect().await.unwrap()));
    let policy = Arc::new(Policy::parse(&quota, [quota.as_str()]).unwrap());
    let checks: u64 = checks.parse().unwrap();
    let mut callers = tokio::task::JoinSet::new();
    for _ in 0..tasks.parse().unwrap() {
        let (limiter, policy) = (limiter.clone(), policy.clone());
        callers.spawn(async move {
            let mut admitted = 0;
            for _ in 0..checks {
                admitted += u64::from(limiter.check(policy.key("hot")).await.unwrap().is_allowed());
            }
            admitted
        });
    }
    println!("contender {}", callers.join_all().await.into_iter().sum::<u64>());
}

fn start_contender(url: &str, quota: &str, tasks: u64, checks: u64) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "contender", "--ignored", "--nocapture"]);
    command.env(URL, url).env(QUOTA, quota).env(TASKS, tasks.to_string()).env(CHECKS, checks.to_string());
    command.stdout(Stdio::piped()).spawn().unwrap()
}

fn admitted(contender: Child) -> u64 {
    let output = contender.wait_with_output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let line = text.lines().find_map(|line| line.split_once("contender ")?.1.parse().ok());
    line.unwrap_or_else(|| panic!("{text}"))
}

#[test]
fn a_hundred_concurrent_checks_of_two_processes_admit_the_limit_of_forty() {
    let server = Postgres::start();
    for table in ["durable=false", "durable=true"] {
        let url = format!("{}?{table}", server.url());
        for quota in ["40/366d", "40/366d strict-window", "40/366d sliding-log", "40/366d fixed-window"] {
            let contenders = [(); 2].map(|()| start_contender(&url, quota, 50, 1));
            assert_eq!(contenders.map(admitted).iter().sum::<u64>(), 40, "{quota}, {table}");
        }
    }
}

#[test]
fn processes_with_repeated_checks_share_a_limit_exactly() {
    let server = Postgres::start();
    for quota in ["700/366d", "700/366d strict-window"] {
        let contenders = [(); 3].map(|()| start_contender(&server.url(), quota, 40, 20));
        assert_eq!(contenders.map(admitted).iter().sum::<u64>(), 700, "{quota}");
    }
}
