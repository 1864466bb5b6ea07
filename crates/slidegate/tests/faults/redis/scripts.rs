//! Flushed scripts are loaded again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use slidegate_testkit::{Flavour, Server};

use super::connect;
use crate::scenarios::{policy, used};

#[tokio::test]
async fn a_flushed_script_is_loaded_again_and_counts_once() {
    let server = Server::start(Flavour::Redis);
    let limiter = connect(&server.url()).await;
    let policy = policy("1000/1h");
    for spent in 1..=5 {
        server.command(&["SCRIPT", "FLUSH"]);
        let decision = limiter.check(policy.key("a")).await.unwrap();
        assert_eq!(decision.quotas()[0].used, spent);
    }
}

/// Another client flushes the script and loads it again at any moment, also between two calls of one batch.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_is_decided_in_order_while_scripts_are_flushed() {
    let server = Server::start(Flavour::Redis);
    let (limiter, other) = (connect(&server.url()).await, connect(&server.url()).await);
    let policy = Arc::new(policy("1000000000/1h"));
    let is_stopped = Arc::new(AtomicBool::new(false));
    let elsewhere = {
        let (server, is_stopped, policy) =
            (server.connect().unwrap(), Arc::clone(&is_stopped), Arc::clone(&policy));
        tokio::spawn(async move {
            let (mut server, mut flushes) = (server, 0);
            while !is_stopped.load(Relaxed) || flushes <= 100 {
                server.command(&["SCRIPT", "FLUSH"]).unwrap();
                let _ = other.check(policy.key("other")).await;
                flushes += 1;
            }
        })
    };
    let mut before = 0;
    for round in 0..100 {
        let responses = limiter.check_many(&[policy.key("hot"); 500]).await;
        for (place, response) in responses.into_iter().enumerate() {
            match response {
                Ok(decision) => {
                    let used = decision.quotas()[0].used;
                    assert_eq!(used, before + 1, "round {round}, place {place}");
                    before = used;
                }
                // Flushed four times in a row between a load and its use: nothing was spent.
                Err(error) => assert!(error.is_transient() && !error.may_have_counted(), "{error}"),
            }
        }
    }
    is_stopped.store(true, Relaxed);
    elsewhere.await.unwrap();
    assert!(before > 10_000, "{before} were decided");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scripts_flushed_under_load_lose_no_decision() {
    let server = Server::start(Flavour::Redis);
    let limiter = Arc::new(connect(&server.url()).await);
    let policy = Arc::new(policy("1000000/1h"));
    let is_stopped = Arc::new(AtomicBool::new(false));
    let flushing = {
        let (server, is_stopped) = (server.connect().unwrap(), Arc::clone(&is_stopped));
        tokio::task::spawn_blocking(move || {
            let mut server = server;
            let mut flushes = 0;
            while !is_stopped.load(Relaxed) {
                server.command(&["SCRIPT", "FLUSH"]).unwrap();
                flushes += 1;
            }
            flushes
        })
    };
    let callers: Vec<_> = (0..20)
        .map(|_| {
            let (limiter, policy) = (Arc::clone(&limiter), Arc::clone(&policy));
            tokio::spawn(async move {
                let mut allowed = 0;
                while allowed < 100 {
                    match limiter.check(policy.key("hot")).await {
                        Ok(decision) => allowed += u64::from(decision.is_allowed()),
                        // Flushed four times in a row between a load and its use: nothing was spent.
                        Err(error) => assert!(error.is_transient() && !error.may_have_counted(), "{error}"),
                    }
                }
                allowed
            })
        })
        .collect();
    let mut allowed = 0;
    for caller in callers {
        allowed += caller.await.unwrap();
    }
    is_stopped.store(true, Relaxed);
    assert!(flushing.await.unwrap() > 0);
    assert_eq!((allowed, used(&limiter, policy.key("hot")).await), (2000, 2000), "each counts once");
}
