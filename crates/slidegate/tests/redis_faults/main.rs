//! What the Redis store promises when things go wrong, each with a real server.

#![cfg(feature = "redis")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[path = "../within_budget/mod.rs"]
mod within_budget;

mod failover;
mod scripts;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use slidegate::{Check, Decision, Limiter, ManualClock, Policy, RedisStore, StoreError};
use slidegate_testkit::{FaultProxy, Flavour, Replica, Sentinels, Server, until};

/// Where it is about that.
const BUDGET: Duration = Duration::from_millis(200);

/// A limiter whose clock stands still, so that what is spent stays spent, and whose callers wait for a busy machine.
async fn frozen(url: &str) -> Limiter<RedisStore> {
    frozen_within(Duration::from_secs(20), url).await
}

async fn frozen_within(budget: Duration, url: &str) -> Limiter<RedisStore> {
    let builder = RedisStore::builder(url).unwrap().budget(budget);
    Limiter::new(builder.time_from(ManualClock::at(1_800_000_000_000)).connect().await.unwrap())
}

fn policy(quota: &str) -> Policy {
    Policy::parse("api", [quota]).unwrap()
}

/// Asks until there is an answer, as a patient caller would. Every error on the way must be transient.
async fn eventually(limiter: &Limiter<RedisStore>, check: Check<'_>) -> Decision {
    for _ in 0..3000 {
        match limiter.check(check).await {
            Ok(decision) => return decision,
            Err(error) => assert!(error.is_transient(), "{error}"),
        }
        pause().await;
    }
    panic!("waited in vain for {check:?}");
}

/// Asks until the answer is that nothing was even sent.
async fn known_to_be_away(limiter: &Limiter<RedisStore>, check: Check<'_>) -> StoreError {
    for _ in 0..100 {
        let error = limiter.check(check).await.unwrap_err();
        if !error.may_have_counted() {
            return error;
        }
    }
    panic!("still asking");
}

/// Another process has to get something done, and there is nothing to wait upon.
async fn pause() {
    use slidegate::{Clock, SystemClock};
    SystemClock::default().sleep(10).await;
}

async fn used(limiter: &Limiter<RedisStore>, check: Check<'_>) -> u64 {
    limiter.peek(check).await.unwrap().quotas()[0].used
}

#[tokio::test]
async fn a_reply_that_is_cut_off_is_an_error_and_is_never_asked_for_again() {
    let server = Server::start(Flavour::Redis);
    let proxy = FaultProxy::start(server.address());
    let limiter = frozen(&proxy.url()).await;
    let policy = policy("1000/1h");
    assert!(limiter.check(policy.key("a")).await.unwrap().is_allowed());
    for (cuts, bytes) in [0, 1, 7, 20].into_iter().enumerate() {
        proxy.cut_reply_after(bytes);
        let error = limiter.check(policy.key("a")).await.unwrap_err();
        assert!(error.is_transient() && error.may_have_counted(), "{error}");
        // The server has counted it, once, and nobody has sent it again.
        let decision = eventually(&limiter, policy.key("a").cost(0)).await;
        assert_eq!(decision.quotas()[0].used, 2 + cuts as u64, "after {bytes} bytes");
    }
}

#[tokio::test]
async fn a_connection_that_was_cut_while_idle_is_made_anew_before_anybody_asks() {
    let server = Server::start(Flavour::Redis);
    let proxy = FaultProxy::start(server.address());
    let limiter = frozen(&proxy.url()).await;
    let policy = policy("1000/1h");
    for spent in 1..=3 {
        let decision = limiter.check(policy.key("a")).await.unwrap();
        assert_eq!(decision.quotas()[0].used, spent);
        let connections = proxy.connections();
        proxy.cut();
        while proxy.connections() == connections {
            pause().await;
        }
    }
}

#[tokio::test]
async fn a_server_that_has_stopped_costs_each_caller_no_more_than_the_budget() {
    let server = Server::start(Flavour::Redis);
    let limiter = Arc::new(frozen_within(BUDGET, &server.url()).await);
    let policy = policy("1000/1h");
    assert!(eventually(&limiter, policy.key("a")).await.is_allowed());
    server.stop_signal();
    // Some in flight, some in the queue, some after the connection was given up.
    let mut errors = Vec::new();
    for _ in 0..3 {
        let many = [(); 10].map(|()| policy.key("a"));
        errors.extend(limiter.check_many(&many).await.into_iter().map(Result::unwrap_err));
        errors.push(limiter.check(policy.key("a")).await.unwrap_err());
    }
    assert!(errors.iter().all(StoreError::is_transient), "{errors:?}");
    // By now it is known to be away, and saying so takes no round trip: nothing can have been counted.
    known_to_be_away(&limiter, policy.key("a")).await;
    server.continue_signal();
    assert!(eventually(&limiter, policy.key("b")).await.is_allowed());
}

#[tokio::test]
async fn every_call_ends_within_its_budget() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = silent.local_addr().unwrap();
    let server = Server::start(Flavour::Redis);
    let connected = frozen_within(BUDGET, &server.url()).await;
    server.stop_signal();
    let lazily =
        |url: String| Limiter::new(RedisStore::builder(&url).unwrap().budget(BUDGET).connect_lazily());
    let limiters = [
        connected,
        lazily(server.url()),
        lazily(format!("redis://{silent}")),
        lazily(format!("redis+sentinel://{silent},{silent}/main")),
        lazily(format!("redis+cluster://{silent},{silent}")),
    ];
    within_budget::assert_fails_within(&limiters, BUDGET).await;
}

#[tokio::test]
async fn a_server_that_is_gone_is_told_at_once_and_found_again() {
    let server = Server::start(Flavour::Redis);
    let limiter = frozen(&server.url()).await;
    let policy = policy("2/1h");
    assert!(limiter.check(policy.key("a")).await.unwrap().is_allowed());
    server.kill();
    let error = known_to_be_away(&limiter, policy.key("a")).await;
    assert!(error.to_string().contains(&server.address().to_string()), "{error}");
    server.restart();
    assert!(eventually(&limiter, policy.key("a")).await.is_allowed());
}

#[tokio::test]
async fn connecting_to_nobody_fails_with_the_address() {
    let server = Server::start(Flavour::Redis);
    server.kill();
    let error = RedisStore::connect(&server.url()).await.unwrap_err();
    assert!(error.is_transient() && error.to_string().contains(&server.address().to_string()), "{error}");
}

/// A server or sentinel that lets us in and then says nothing: a listener that never answers.
#[tokio::test]
async fn whoever_says_nothing_holds_nobody_up() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = silent.local_addr().unwrap();
    let server = Server::start(Flavour::Redis);
    let replica = Replica::of(&server);
    let sentinels = Sentinels::start(&server, "main");
    let proxy = FaultProxy::start(sentinels.addresses()[0]);
    let rest = sentinels.addresses()[1];
    // The first sentinel goes silent in the middle of the conversation, a second one is there.
    proxy.stall();
    let url = format!("redis+sentinel://{},{rest}/main", proxy.address());
    let limiter = frozen_within(BUDGET, &url).await;
    assert!(eventually(&limiter, policy("10/1h").key("a")).await.is_allowed());
    drop(replica);

    let error = RedisStore::connect(&format!("redis://{silent}")).await.unwrap_err();
    assert!(error.is_transient(), "{error}");
    // Whoever waits for a connection that never comes has sent nothing.
    let lazy = RedisStore::builder(&format!("redis://{silent}")).unwrap().budget(BUDGET).connect_lazily();
    let error = Limiter::new(lazy).check(policy("10/1h").key("a")).await.unwrap_err();
    assert!(error.is_transient() && !error.may_have_counted(), "{error}");
}

/// None of it waits for an answer to any other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_takes_one_round_trip() {
    let server = Server::start(Flavour::Redis);
    let proxy = FaultProxy::start(server.address());
    let builder = RedisStore::builder(&proxy.url()).unwrap().budget(Duration::from_secs(20));
    let limiter = Arc::new(Limiter::new(builder.connect().await.unwrap()));
    server.command(&["FLUSHDB"]);
    for count in [2, 1000] {
        proxy.mute();
        let batch = {
            let limiter = Arc::clone(&limiter);
            tokio::spawn(async move {
                let policy = policy("1000000/1h");
                let keys: Vec<String> = (0..count).map(|number| format!("{number} of {count}")).collect();
                let checks: Vec<_> = keys.iter().map(|key| policy.key(key)).collect();
                limiter.check_many(&checks).await
            })
        };
        // All has been counted, and nothing was heard of it.
        tokio::task::block_in_place(|| {
            until("all is counted", || match server.command(&["DBSIZE"]).int() {
                keys if keys == count => Ok(()),
                keys => Err(format!("{keys} of {count}")),
            });
        });
        assert!(!batch.is_finished());
        proxy.pass();
        let decisions = batch.await.unwrap();
        assert_eq!(
            decisions.iter().flatten().filter(|decision| decision.is_allowed()).count(),
            decisions.len()
        );
        server.command(&["FLUSHDB"]);
    }
}

/// What has been answered is answered, whatever becomes of the rest.
#[tokio::test]
async fn a_batch_that_is_cut_off_keeps_the_answers_that_came() {
    let server = Server::start(Flavour::Redis);
    let proxy = FaultProxy::start(server.address());
    let limiter = frozen(&proxy.url()).await;
    let policy = policy("1000000/1h");
    let keys: Vec<String> = (0..1000).map(|number| number.to_string()).collect();
    let checks: Vec<_> = keys.iter().map(|key| policy.key(key)).collect();
    // Enough for the first calls of 64 keys and not for all of them. A reset could overtake it while others are still sent.
    proxy.end_reply_after(1000);
    let decided = limiter.check_many(&checks).await;
    let answered = decided.iter().filter(|decision| decision.is_ok()).count();
    assert!((64..1000).contains(&answered), "{answered}");
    for error in decided.iter().filter_map(|decision| decision.as_ref().err()) {
        assert!(error.may_have_counted(), "{error}");
    }
}

/// A large batch leaves room for others.
#[tokio::test]
async fn a_large_batch_turns_nobody_away() {
    let server = Server::start(Flavour::Redis);
    let builder = RedisStore::builder(&server.url()).unwrap().budget(Duration::from_secs(20)).max_waiting(64);
    let limiter = Arc::new(Limiter::new(builder.connect().await.unwrap()));
    let policy = Arc::new(policy("1000000/1h"));
    let batch = {
        let (limiter, policy) = (Arc::clone(&limiter), Arc::clone(&policy));
        tokio::spawn(async move {
            let keys: Vec<String> = (0..2000).map(|number| format!("k{number}")).collect();
            let checks: Vec<_> = keys.iter().map(|key| policy.key(key)).collect();
            limiter.check_many(&checks).await.into_iter().flatten().count()
        })
    };
    while !batch.is_finished() {
        assert!(limiter.check(policy.key("single")).await.unwrap().is_allowed());
    }
    assert_eq!(batch.await.unwrap(), 2000);
}

#[tokio::test]
async fn a_caller_who_gives_up_does_not_spoil_the_others() {
    let server = Server::start(Flavour::Redis);
    let proxy = FaultProxy::start(server.address());
    let limiter = Arc::new(frozen(&proxy.url()).await);
    let policy = Arc::new(policy("1000/1h"));
    assert!(limiter.check(policy.key("a")).await.unwrap().is_allowed());
    proxy.stall();
    // Two calls of 64 are under way and stall; the others wait in the queue.
    let callers: Vec<_> = (0..400)
        .map(|_| {
            let (limiter, policy) = (Arc::clone(&limiter), Arc::clone(&policy));
            tokio::spawn(async move { limiter.check(policy.key("a")).await })
        })
        .collect();
    // Until all of them have asked.
    for _ in 0..1000 {
        tokio::task::yield_now().await;
    }
    let mut staying = Vec::new();
    for (number, caller) in callers.into_iter().enumerate() {
        if number % 2 == 0 {
            caller.abort();
        } else {
            staying.push(caller);
        }
    }
    proxy.pass();
    let mut admitted = 0;
    for caller in staying {
        admitted += u64::from(caller.await.unwrap().unwrap().is_allowed());
    }
    assert_eq!(admitted, 200);
    // Of those who left, 64 were under way and may be counted; whoever left the queue is not.
    let spent = used(&limiter, policy.key("a")).await;
    assert!((201..=265).contains(&spent), "{spent} of 401");
}

/// A clock that fails when it is told to: a defect in the middle of the store's own task.
struct Faulty(Arc<AtomicBool>);

impl slidegate::Clock for Faulty {
    fn now_ms(&self) -> u64 {
        assert!(!self.0.swap(false, Relaxed), "a defect");
        1_800_000_000_000
    }

    fn sleep(&self, _: u64) -> slidegate::Sleep<'_> {
        Box::pin(std::future::ready(()))
    }
}

#[tokio::test]
async fn a_task_that_fails_is_started_anew_and_nobody_waits_for_it_forever() {
    let server = Server::start(Flavour::Redis);
    let is_faulty = Arc::new(AtomicBool::new(false));
    let builder = RedisStore::builder(&server.url()).unwrap().budget(Duration::from_secs(20));
    let store = builder.time_from(Faulty(Arc::clone(&is_faulty))).connect().await.unwrap();
    let (limiter, policy) = (Limiter::new(store), policy("10/1h"));
    for spent in 1..=3 {
        assert_eq!(limiter.check(policy.key("a")).await.unwrap().quotas()[0].used, spent);
        is_faulty.store(true, Relaxed);
        // Not after its budget, which the test would not live to see three times.
        let error = limiter.check(policy.key("a")).await.unwrap_err();
        assert!(error.to_string().contains("broke before the reply"), "{error}");
    }
}

#[tokio::test]
async fn a_full_queue_refuses_at_once() {
    let server = Server::start(Flavour::Redis);
    let proxy = FaultProxy::start(server.address());
    let builder = RedisStore::builder(&proxy.url()).unwrap().budget(Duration::from_secs(5)).max_waiting(4);
    let limiter = Arc::new(Limiter::new(builder.connect().await.unwrap()));
    let policy = Arc::new(policy("1000/1h"));
    proxy.stall();
    let mut callers = tokio::task::JoinSet::new();
    for _ in 0..100 {
        let (limiter, policy) = (Arc::clone(&limiter), Arc::clone(&policy));
        callers.spawn(async move { limiter.check(policy.key("a")).await });
    }
    // Nobody else can be done yet.
    for _ in 0..84 {
        let error = callers.join_next().await.unwrap().unwrap().unwrap_err();
        assert!(error.is_transient() && !error.may_have_counted(), "{error}");
        assert_eq!(error.to_string(), "redis: 4 calls wait already");
    }
    proxy.pass();
    let mut answered = 0;
    while let Some(answer) = callers.join_next().await {
        answered += u64::from(answer.unwrap().is_ok());
    }
    assert!((4..=16).contains(&answered), "{answered} of 100 found room");
}

#[tokio::test]
async fn memory_that_has_run_out_is_told_as_full_and_denials_still_work() {
    let server = Server::start(Flavour::Redis);
    let limiter = frozen(&server.url()).await;
    let policy = policy("1/1h");
    assert!(limiter.check(policy.key("a")).await.unwrap().is_allowed());
    server.command(&["CONFIG", "SET", "maxmemory", "1"]);
    assert!(!limiter.check(policy.key("a")).await.unwrap().is_allowed());
    let error = limiter.check(policy.key("b")).await.unwrap_err();
    assert!(error.is_full() && error.is_transient() && !error.may_have_counted(), "{error}");
    server.command(&["CONFIG", "SET", "maxmemory", "0"]);
    assert!(limiter.check(policy.key("b")).await.unwrap().is_allowed());
}

#[tokio::test]
async fn a_key_that_is_not_ours_fails_alone() {
    let server = Server::start(Flavour::Redis);
    let limiter = frozen(&server.url()).await;
    let policy = policy("10/1h");
    assert!(limiter.check(policy.key("a")).await.unwrap().is_allowed());
    let name = server.command(&["KEYS", "sg:*"]).array()[0].text();
    for spoil in [&["SADD", &name, "x"][..], &["SET", &name, "nonsense"], &["SET", &name, "\u{1}nonsense!!"]]
    {
        server.command(&["DEL", &name]);
        server.command(spoil);
        let answers = limiter.check_many(&[policy.key("b"), policy.key("a"), policy.key("c")]).await;
        assert!(answers[0].as_ref().unwrap().is_allowed());
        let error = answers[1].as_ref().unwrap_err();
        assert!(!error.is_transient(), "{spoil:?}: {error}");
        assert!(answers[2].as_ref().unwrap().is_allowed());
    }
    // Whoever resets it has it back.
    let _ = limiter.reset(policy.key("a")).await.unwrap();
    assert!(limiter.check(policy.key("a")).await.unwrap().is_allowed());
}
