//! The shared document of all nodes of a store.

#![cfg(all(feature = "redis", feature = "postgres"))]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use futures_util::future::join_all;
use slidegate::store::{PostgresStore, RedisStore, SharedDocument, SharedDocuments};
use slidegate_testkit::{Cluster, Flavour, Postgres, Server};

fn document(text: &str) -> SharedDocument {
    SharedDocument::new(text.to_owned())
}

/// A document written by one node is read by the other, and a write with an outdated version is rejected.
async fn check_versions<N: SharedDocuments>([one, other]: [&N; 2]) {
    assert_eq!(one.read_document(0).await.unwrap(), None);
    assert_eq!(
        one.read_document(5).await.unwrap(),
        Some(SharedDocument::default()),
        "a reader with an old version detects that the document is gone"
    );
    let long = "it's \"long\" {\\n} \u{1F600} $1 ".repeat(20_000);
    let (first, second) = (document("first"), document(&long));
    assert!(one.write_document(0, &first).await.unwrap());
    assert!(!other.write_document(0, &document("lost")).await.unwrap());
    assert_eq!(other.read_document(0).await.unwrap().as_ref(), Some(&first));
    assert_eq!(other.read_document(first.version).await.unwrap(), None);
    assert!(other.write_document(first.version, &second).await.unwrap());
    assert!(!one.write_document(first.version, &document("lost")).await.unwrap());
    assert_eq!(one.read_document(first.version).await.unwrap(), Some(second));
}

/// Concurrent writes, each based on a read version, lose no update.
async fn check_concurrent_writes<N: SharedDocuments>([one, other]: [&N; 2]) {
    let start = one.read_document(0).await.unwrap().unwrap();
    assert!(one.write_document(start.version, &document("")).await.unwrap());
    let add = async |documents: &N| {
        loop {
            let held = documents.read_document(0).await.unwrap().unwrap();
            let longer = document(&(held.text + "x"));
            if documents.write_document(held.version, &longer).await.unwrap() {
                return;
            }
        }
    };
    join_all([one, other, one, other, one, other].map(add)).await;
    assert_eq!(one.read_document(0).await.unwrap().unwrap().text, "xxxxxx");
}

async fn check_document<N: SharedDocuments>(stores: [&N; 2]) {
    check_versions(stores).await;
    check_concurrent_writes(stores).await;
}

async fn redis(url: &str) -> RedisStore {
    RedisStore::connect(&format!("{url}?budget_ms=5000")).await.unwrap()
}

#[tokio::test]
async fn a_document_is_stored_in_redis_and_valkey() {
    for flavour in Flavour::ALL {
        let server = Server::start(flavour);
        let [one, other] = [redis(&server.url()).await, redis(&server.url()).await];
        check_document([&one, &other]).await;
        // An empty store without scripts: the node loads the scripts again and reads the missing document.
        server.command(&["FLUSHALL"]).ok();
        server.command(&["SCRIPT", "FLUSH"]).ok();
        assert_eq!(one.read_document(5).await.unwrap(), Some(SharedDocument::default()));
        assert!(other.write_document(0, &document("again")).await.unwrap());
    }
}

#[tokio::test]
async fn a_document_is_stored_in_a_cluster() {
    let cluster = Cluster::start(Flavour::Redis);
    let seeds: Vec<String> = cluster.addresses().iter().map(ToString::to_string).collect();
    let url = format!("redis+cluster://{}", seeds.join(","));
    let [one, other] = [redis(&url).await, redis(&url).await];
    check_document([&one, &other]).await;
}

#[tokio::test]
async fn a_document_is_stored_in_postgres() {
    let server = Postgres::start();
    let connect = || async { PostgresStore::connect(&server.url()).await.unwrap() };
    let [one, other] = [connect().await, connect().await];
    check_document([&one, &other]).await;
}
