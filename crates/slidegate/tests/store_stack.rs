//! Limiters over real servers, with every layer that a stack can have.

#![cfg(all(feature = "resilience", feature = "redis", feature = "postgres"))]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::sync::Arc;
use std::time::Duration;

use slidegate::resilience::{Mode, OnFailure};
use slidegate::store::{AnyStore, SharedDocument, SharedDocuments, Store};
use slidegate::{Limiter, Policy, Request, Source, StoreStack, StoreStackBuilder};
use slidegate_testkit::{Flavour, Postgres, Server};

fn every_layer() -> StoreStackBuilder {
    StoreStack::builder()
        .nodes(2)
        .on_failure(OnFailure::Closed)
        .budget(Duration::from_secs(10))
        .cache_denials(true)
        .retry_jitter(Duration::from_millis(1))
        .switches([])
}

/// The hints of the store reach the top of the stack, and a second process shares the counts.
async fn assert_serves(url: &str) {
    let [store, other] = [every_layer().connect(url), every_layer().connect(url)];
    let (store, other) = (Arc::new(store.await.unwrap()), Arc::new(other.await.unwrap()));
    let policy = Policy::parse("api", ["3/1h fixed-window"]).unwrap();
    assert!(!Store::is_immediate(&*store), "a remote store waits");
    assert!(store.feed_version(&policy.key("a")).is_some(), "the feed is the store's");
    let (here, there) =
        (Limiter::over(store.clone(), policy.clone()), Limiter::over(other.clone(), policy.clone()));

    assert_eq!(here.check(Request::key("a").cost(2)).await.unwrap().remaining(), 1);
    let together = there.check_many(["a", "b", "a"]).await;
    let allowed: Vec<bool> =
        together.iter().map(|decision| decision.as_ref().unwrap().is_allowed()).collect();
    assert_eq!(allowed, [true, true, false], "another process counts on");
    assert_eq!(there.check("a").await.unwrap().source(), Source::Cache, "the denial is cached");
    assert_eq!(there.wait("a", Duration::ZERO).await.unwrap().source(), Source::Cache);

    store.switches().unwrap().update("api", |switch| switch.mode = Mode::Off);
    assert_eq!(here.check("a").await.unwrap().source(), Source::Rule);
    store.switches().unwrap().replace([]);
    assert!(here.reset("a").await.unwrap().is_found());
    assert!(store.fallback().unwrap().failure().is_none());
    assert_eq!(store.denied_cache().unwrap().len(), 0);

    here.forget().await.unwrap();
    assert_eq!(here.peek("b").await.unwrap().remaining(), 3, "all keys of the policy are forgotten");

    let document = SharedDocument::new("text".to_owned());
    assert!(store.base().write_document(0, &document).await.unwrap());
    assert_eq!(other.base().read_document(0).await.unwrap(), Some(document));
    assert!(store.base().memory().is_none());
    let error = here.check_now("a").unwrap_err();
    assert!(error.to_string().contains("use `check(…).await`"), "{error}");
}

#[tokio::test]
async fn a_stack_serves_over_redis() {
    let redis = Server::start(Flavour::Redis);
    assert_serves(&redis.url()).await;
    let store = StoreStack::builder().connect(&redis.url()).await.unwrap();
    assert!(matches!(store.base(), AnyStore::Redis(_)));
    assert!(store.fallback().is_none() && store.denied_cache().is_none() && store.switches().is_none());
}

#[tokio::test]
async fn a_stack_serves_over_postgresql() {
    let postgres = Postgres::start();
    assert_serves(&postgres.url()).await;
}

#[tokio::test]
async fn a_store_in_memory_shares_no_document() {
    let store = every_layer().in_memory().unwrap();
    assert!(Store::is_immediate(&store) && store.fallback().is_none() && store.denied_cache().is_none());
    let document = SharedDocument::new("text".to_owned());
    assert!(!store.base().write_document(0, &document).await.unwrap());
    assert_eq!(store.base().read_document(0).await.unwrap(), None);
}
