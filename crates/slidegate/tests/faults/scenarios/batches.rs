//! Batches of many requests.

use std::sync::Arc;

use slidegate_testkit::FaultProxy;

use super::{policy, wait_until};
use crate::backend::{Backend, Settings, connect, connect_with};

/// No part of a batch waits for the response to another part.
pub(crate) async fn a_batch_takes_one_round_trip<B: Backend>() {
    let server = B::start();
    let proxy = FaultProxy::start(server.address());
    let limiter = Arc::new(connect::<B>(&B::url_at(proxy.address())).await);
    server.clear();
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
        wait_until("all requests are counted", || server.keys() == count).await;
        assert!(!batch.is_finished(), "no response has arrived");
        proxy.pass();
        let decisions = batch.await.unwrap();
        let allowed = decisions.iter().flatten().filter(|decision| decision.is_allowed()).count();
        assert_eq!((allowed, decisions.len()), (count, count));
        server.clear();
    }
}

/// Received responses stay valid when the rest of the batch fails.
pub(crate) async fn a_batch_that_is_cut_keeps_its_received_responses<B: Backend>() {
    let server = B::start();
    let proxy = FaultProxy::start(server.address());
    let settings = Settings { connections: 1, ..Settings::default() };
    let limiter = connect_with::<B>(&B::url_at(proxy.address()), settings).await;
    let policy = policy("1000000/1h");
    let keys: Vec<String> = (0..1000).map(|number| number.to_string()).collect();
    let checks: Vec<_> = keys.iter().map(|key| policy.key(key)).collect();
    // Responses about existing keys are longer.
    assert!(limiter.check_many(&checks).await.iter().all(Result::is_ok));
    // Enough bytes for the first calls of 64 keys, but not for all. A reset could overtake these replies while other
    // calls are still being sent.
    proxy.end_reply_after(B::PART_OF_REPLIES);
    let decided = limiter.check_many(&checks).await;
    let succeeded = decided.iter().filter(|decision| decision.is_ok()).count();
    assert!((64..1000).contains(&succeeded) && succeeded % 64 == 0, "{succeeded}");
    for error in decided.iter().filter_map(|decision| decision.as_ref().err()) {
        assert!(error.may_have_counted(), "{error}");
    }
}

/// A large batch leaves space in the queue for other requests.
pub(crate) async fn a_large_batch_causes_no_rejections<B: Backend>() {
    let server = B::start();
    let settings = Settings { max_waiting: Some(64), ..Settings::default() };
    let limiter = Arc::new(connect_with::<B>(&server.url(), settings).await);
    let policy = Arc::new(policy("1000000/1h"));
    let batch = {
        let (limiter, policy) = (Arc::clone(&limiter), Arc::clone(&policy));
        tokio::spawn(async move {
            let keys: Vec<String> = (0..3000).map(|number| format!("k{number}")).collect();
            let checks: Vec<_> = keys.iter().map(|key| policy.key(key)).collect();
            limiter.check_many(&checks).await.into_iter().flatten().count()
        })
    };
    while !batch.is_finished() {
        assert!(limiter.check(policy.key("single")).await.unwrap().is_allowed());
    }
    assert_eq!(batch.await.unwrap(), 3000);
}
