//! The note that all who share a store can read and change.

#![cfg(all(feature = "redis", feature = "postgres"))]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use futures_util::future::join_all;
use slidegate::{PostgresStore, RedisStore, SharedDocument, SharedDocuments};
use slidegate_testkit::{Cluster, Flavour, Postgres, Server};

fn note(text: &str) -> SharedDocument {
    SharedDocument::new(text.to_owned())
}

/// What is written by one is read by the other, and nobody writes over what he has not seen.
async fn is_shared<N: SharedDocuments>([one, other]: [&N; 2]) {
    assert_eq!(one.read_document(0).await.unwrap(), None);
    assert_eq!(
        one.read_document(5).await.unwrap(),
        Some(SharedDocument::default()),
        "whoever knew one learns that it is gone"
    );
    let long = "it's \"long\" {\\n} \u{1F600} $1 ".repeat(20_000);
    let (first, second) = (note("first"), note(&long));
    assert!(one.write_document(0, &first).await.unwrap());
    assert!(!other.write_document(0, &note("lost")).await.unwrap());
    assert_eq!(other.read_document(0).await.unwrap().as_ref(), Some(&first));
    assert_eq!(other.read_document(first.version).await.unwrap(), None);
    assert!(other.write_document(first.version, &second).await.unwrap());
    assert!(!one.write_document(first.version, &note("lost")).await.unwrap());
    assert_eq!(one.read_document(first.version).await.unwrap(), Some(second));
}

/// Of many who write at the same moment, each in place of what he has read, none is lost.
async fn adds_up<N: SharedDocuments>([one, other]: [&N; 2]) {
    let start = one.read_document(0).await.unwrap().unwrap();
    assert!(one.write_document(start.version, &note("")).await.unwrap());
    let add = async |notes: &N| {
        loop {
            let held = notes.read_document(0).await.unwrap().unwrap();
            let longer = note(&(held.text + "x"));
            if notes.write_document(held.version, &longer).await.unwrap() {
                return;
            }
        }
    };
    join_all([one, other, one, other, one, other].map(add)).await;
    assert_eq!(one.read_document(0).await.unwrap().unwrap().text, "xxxxxx");
}

async fn is_kept<N: SharedDocuments>(stores: [&N; 2]) {
    is_shared(stores).await;
    adds_up(stores).await;
}

async fn redis(url: &str) -> RedisStore {
    RedisStore::connect(&format!("{url}?budget_ms=5000")).await.unwrap()
}

#[tokio::test]
async fn a_note_is_kept_in_redis_and_valkey() {
    for flavour in Flavour::ALL {
        let server = Server::start(flavour);
        let [one, other] = [redis(&server.url()).await, redis(&server.url()).await];
        is_kept([&one, &other]).await;
        // The store is another one, and has forgotten its scripts: both are learnt.
        server.command(&["FLUSHALL"]).ok();
        server.command(&["SCRIPT", "FLUSH"]).ok();
        assert_eq!(one.read_document(5).await.unwrap(), Some(SharedDocument::default()));
        assert!(other.write_document(0, &note("again")).await.unwrap());
    }
}

#[tokio::test]
async fn a_note_is_kept_in_a_cluster() {
    let cluster = Cluster::start(Flavour::Redis);
    let seeds: Vec<String> = cluster.addresses().iter().map(ToString::to_string).collect();
    let url = format!("redis+cluster://{}", seeds.join(","));
    let [one, other] = [redis(&url).await, redis(&url).await];
    is_kept([&one, &other]).await;
}

#[tokio::test]
async fn a_note_is_kept_in_postgres() {
    let server = Postgres::start();
    let connect = || async { PostgresStore::connect(&server.url()).await.unwrap() };
    let [one, other] = [connect().await, connect().await];
    is_kept([&one, &other]).await;
}
