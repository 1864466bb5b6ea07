//! Several processes, and hosts with different clocks, share one limit exactly. The server's clock runs, so the windows
//! are long enough that nothing expires.

#![cfg(feature = "redis")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::process::{Child, Command, Stdio};

use slidegate::store::{RedisStore, StoreLimiter};
use slidegate::{Clock, Policy, PreciseClock};
use slidegate_testkit::{Flavour, Server, faketime_env, until};

const URL: &str = "SLIDEGATE_TEST_URL";
const QUOTA: &str = "SLIDEGATE_TEST_QUOTA";

/// Body of each process: 40 tasks with 25 checks each. Prints the process's time and the number of admitted checks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "the other tests run it in processes of their own"]
async fn contender() {
    let (url, quota) = (std::env::var(URL).unwrap(), std::env::var(QUOTA).unwrap());
    let builder = RedisStore::builder(&url).unwrap().budget(std::time::Duration::from_secs(20));
    let limiter = std::sync::Arc::new(StoreLimiter::new(builder.connect().await.unwrap()));
    let policy = std::sync::Arc::new(Policy::parse("shared", quota.split(", ")).unwrap());
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..40 {
        let (limiter, policy) = (limiter.clone(), policy.clone());
        tasks.spawn(async move {
            let mut admitted = 0;
            for _ in 0..25 {
                admitted += u64::from(limiter.check(policy.key("hot")).await.unwrap().is_allowed());
            }
            admitted
        });
    }
    let admitted: u64 = tasks.join_all().await.into_iter().sum();
    println!("contender {} {admitted}", PreciseClock::default().now_ms());
}

fn start_contender(server: &Server, quota: &str, offset: Option<&str>) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "contender", "--ignored", "--nocapture"]);
    command.env(URL, server.url()).env(QUOTA, quota).stdout(Stdio::piped());
    if let Some(offset) = offset {
        command.envs(faketime_env(offset));
    }
    command.spawn().unwrap()
}

/// Returns the process's time and the number of admitted checks.
fn outcome(contender: Child) -> (u64, u64) {
    let output = contender.wait_with_output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let line =
        text.lines().find_map(|line| line.split_once("contender ")).unwrap_or_else(|| panic!("{text}")).1;
    let (now_ms, admitted) = line.split_once(' ').unwrap();
    (now_ms.parse().unwrap(), admitted.parse().unwrap())
}

#[test]
fn processes_share_a_limit_exactly() {
    for flavour in Flavour::ALL {
        let server = Server::start(flavour);
        for quota in [
            "700/1h",
            "700/366d strict-window",
            "700/366d sliding-log",
            "700/366d fixed-window",
            "700/366d token-bucket",
            "900/1h, 700/366d strict-window, 800/366d token-bucket",
        ] {
            server.command(&["FLUSHALL"]);
            let contenders = [(); 4].map(|()| start_contender(&server, quota, None));
            let admitted: u64 = contenders.map(|contender| outcome(contender).1).iter().sum();
            assert_eq!(admitted, 700, "{quota} on {flavour:?}");
        }
    }
}

#[test]
fn hosts_whose_clocks_differ_by_an_hour_share_a_limit_exactly() {
    let server = Server::start(Flavour::Redis);
    for quota in ["900/1h", "900/1h strict-window", "900/1h sliding-log"] {
        server.command(&["FLUSHALL"]);
        // The process with the slower clock starts first: if the callers' clocks decided, an hour would have passed for
        // the other process.
        let calls = server.scripts_run() + 20;
        let behind = start_contender(&server, quota, None);
        until("the first process has spent units", || match server.scripts_run() {
            run if run > calls => Ok(()),
            run => Err(run.to_string()),
        });
        let ahead = start_contender(&server, quota, Some("+1h"));
        let ((ahead_ms, some), (behind_ms, others)) = (outcome(ahead), outcome(behind));
        let apart_ms = ahead_ms.abs_diff(behind_ms);
        assert!((3_500_000..3_700_000).contains(&apart_ms), "the clocks do differ: {apart_ms}");
        assert_eq!(some + others, 900, "{quota}");
    }
}
