//! The Redis store on clusters of six real nodes: conformance suite, slot migrations and failing primaries.

#![cfg(feature = "redis")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod conformance;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use conformance::{START, Subject};
use slidegate::store::{KeyStyle, RedisStore, RedisStoreBuilder, StoreLimiter};
use slidegate::{Check, Clock, Decision, ManualClock, Policy, SystemClock};
use slidegate_testkit::{Cluster, FaultProxy, Flavour, until};

/// Starts a cluster with a node timeout that tolerates a busy machine.
fn start_cluster(flavour: Flavour) -> Cluster {
    Cluster::start_with(flavour, &["--cluster-node-timeout", "15000"])
}

fn url(cluster: &Cluster) -> String {
    let hosts = cluster.addresses().iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
    format!("redis+cluster://{hosts}")
}

fn builder(cluster: &Cluster) -> RedisStoreBuilder {
    RedisStore::builder(&url(cluster)).unwrap().budget(Duration::from_secs(20))
}

/// Connects to the shared cluster of a flavour with a key prefix of its own.
async fn subject(cluster: &Cluster) -> Subject<RedisStore> {
    static SUBJECTS: AtomicU64 = AtomicU64::new(0);
    let prefix = format!("subject{}", SUBJECTS.fetch_add(1, Relaxed));
    let clock = ManualClock::at(START);
    let builder = builder(cluster).prefix(&prefix).unwrap().time_from(clock.clone());
    let store = builder.connect().await.unwrap();
    // A lower effort than on a single server: the script is the same, and only the routing differs.
    Subject { store, set_now: Box::new(move |now_ms| clock.set(now_ms)), effort: 12 }
}

mod on_redis {
    use super::*;

    static CLUSTER: LazyLock<Cluster> = LazyLock::new(|| start_cluster(Flavour::Redis));

    conformance::suite!(subject(&CLUSTER).await);
}

mod on_valkey {
    use super::*;

    static CLUSTER: LazyLock<Cluster> = LazyLock::new(|| start_cluster(Flavour::Valkey));

    conformance::suite!(subject(&CLUSTER).await);
}

async fn frozen(builder: RedisStoreBuilder) -> StoreLimiter<RedisStore> {
    StoreLimiter::new(builder.time_from(ManualClock::at(START)).connect().await.unwrap())
}

/// Retries until the store decides, for less time than the regular refresh of the slot map takes.
async fn eventually(limiter: &StoreLimiter<RedisStore>, check: Check<'_>) -> Decision {
    for _ in 0..1000 {
        match limiter.check(check).await {
            Ok(decision) => return decision,
            Err(error) => assert!(error.is_transient(), "{error}"),
        }
        SystemClock::default().sleep(10).await;
    }
    panic!("no decision about {check:?}");
}

/// Slots migrate while many callers spend from keys in them: no decision is wrong or missing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn resharding_under_load_loses_no_count() {
    for flavour in Flavour::ALL {
        let cluster = start_cluster(flavour);
        let limiter = Arc::new(frozen(builder(&cluster)).await);
        let policy = Arc::new(Policy::parse("api", ["1000000/1h"]).unwrap());
        let is_stopped = Arc::new(AtomicBool::new(false));
        for number in 0..4 {
            assert!(limiter.check(policy.key(&format!("user:{number}"))).await.unwrap().is_allowed());
        }
        let callers: Vec<_> = (0..8)
            .map(|number| {
                let (limiter, policy, is_stopped) = (limiter.clone(), policy.clone(), is_stopped.clone());
                tokio::spawn(async move {
                    let key = format!("user:{}", number % 4);
                    let mut admitted = 0;
                    while !is_stopped.load(Relaxed) {
                        admitted += u64::from(limiter.check(policy.key(&key)).await.unwrap().is_allowed());
                    }
                    admitted
                })
            })
            .collect();
        // Migrates the slots of all four keys.
        let cluster = tokio::task::spawn_blocking(move || {
            for slot in used_slots(&cluster) {
                let owner = cluster.owner_of(slot);
                let to = *cluster.masters().iter().find(|node| **node != owner).unwrap();
                cluster.begin_migration(slot, to);
                cluster.migrate_keys(slot);
                cluster.end_migration(slot);
                cluster.wait_healthy();
            }
            cluster
        })
        .await
        .unwrap();
        is_stopped.store(true, Relaxed);
        let mut admitted = 0;
        for caller in callers {
            admitted += caller.await.unwrap();
        }
        let mut counted = 0;
        for number in 0..4 {
            counted += limiter.peek(policy.key(&format!("user:{number}"))).await.unwrap().quotas()[0].used;
        }
        assert_eq!(admitted + 4, counted, "{flavour:?}");
        assert!(admitted > 100, "{admitted} under load");
        drop(cluster);
    }
}

fn used_slots(cluster: &Cluster) -> Vec<u16> {
    let mut slots = Vec::new();
    for master in cluster.masters() {
        for name in cluster.node(master).command(&["KEYS", "*"]).array() {
            slots.push(cluster.slot_of(name.text()));
        }
    }
    assert_eq!(slots.len(), 4, "one record for each key");
    slots
}

/// During a migration a slot's keys are on two nodes, and a call for keys on both is rejected as a whole.
#[tokio::test]
async fn keys_of_a_migrating_slot_are_requested_separately() {
    let cluster = start_cluster(Flavour::Redis);
    let limiter = frozen(builder(&cluster).key_style(KeyStyle::Plain)).await;
    let policy = Policy::parse("api", ["1000000/1h"]).unwrap();
    let (one, other) = two_keys_of_one_slot(&cluster, &limiter, &policy).await;
    let before = limiter.peek(policy.key(&one)).await.unwrap().quotas()[0].used;
    let owner = start_migration(&cluster, &one);
    for round in 1..=3 {
        let keys = [&one, &other, &one, &other];
        let checks = keys.map(|key| policy.key(key));
        let responses = limiter.check_many(&checks).await;
        for (place, response) in responses.into_iter().enumerate() {
            assert!(response.unwrap().is_allowed(), "round {round}, place {place}");
        }
    }
    assert_eq!(limiter.peek(policy.key(&one)).await.unwrap().quotas()[0].used, before + 6);
    let errors = cluster.node(owner).command(&["INFO", "errorstats"]).text();
    assert!(errors.contains("errorstat_TRYAGAIN:count="), "both keys were requested in one call: {errors}");
}

/// Regression: in a batch larger than one call, later requests were decided first.
#[tokio::test]
async fn a_batch_on_a_migrating_slot_is_decided_in_order() {
    let cluster = start_cluster(Flavour::Redis);
    let builder = builder(&cluster).key_style(KeyStyle::Plain).budget(Duration::from_secs(20));
    let limiter = frozen(builder).await;
    let policy = Policy::parse("api", ["1000000/1h"]).unwrap();
    let (one, other) = two_keys_of_one_slot(&cluster, &limiter, &policy).await;
    let before = limiter.peek(policy.key(&one)).await.unwrap().quotas()[0].used;
    start_migration(&cluster, &one);
    for round in 0..3 {
        let mut checks = vec![policy.key(&other)];
        checks.resize(500, policy.key(&one));
        let responses = limiter.check_many(&checks).await;
        let used: Vec<_> =
            responses.into_iter().skip(1).map(|response| response.unwrap().quotas()[0].used).collect();
        let first = before + 499 * round + 1;
        assert_eq!(used, (first..first + 499).collect::<Vec<_>>());
    }
}

/// A key may already be on the target node, which does not own the slot yet.
#[tokio::test]
async fn a_policy_is_forgotten_on_both_nodes_of_a_migrating_slot() {
    let cluster = start_cluster(Flavour::Redis);
    let limiter = frozen(builder(&cluster).key_style(KeyStyle::Plain)).await;
    let policy = Policy::parse("api", ["1/1h"]).unwrap();
    let (one, other) = two_keys_of_one_slot(&cluster, &limiter, &policy).await;
    start_migration(&cluster, &one);
    assert!(limiter.forget(&policy).await.unwrap().unwrap() >= 2);
    for key in [&one, &other, &"k0".to_owned()] {
        assert!(limiter.check(policy.key(key)).await.unwrap().is_allowed(), "{key}");
    }
}

/// Starts the migration of a key's slot and moves this key first. Returns the node that holds the other keys.
fn start_migration(cluster: &Cluster, key: &str) -> usize {
    let slot = slot_of(cluster, key);
    let owner = cluster.owner_of(slot);
    let to = *cluster.masters().iter().find(|node| **node != owner).unwrap();
    cluster.begin_migration(slot, to);
    let (name, port) = (name_of(cluster, owner, key), cluster.node(to).port().to_string());
    cluster.node(owner).command(&["MIGRATE", "127.0.0.1", &port, &name, "0", "5000"]).ok();
    owner
}

async fn two_keys_of_one_slot(
    cluster: &Cluster,
    limiter: &StoreLimiter<RedisStore>,
    policy: &Policy,
) -> (String, String) {
    let mut seen = std::collections::HashMap::new();
    for number in 0.. {
        let key = format!("k{number}");
        assert!(limiter.check(policy.key(&key)).await.unwrap().is_allowed());
        if let Some(other) = seen.insert(slot_of(cluster, &key), key.clone()) {
            return (other, key);
        }
    }
    unreachable!("more keys than slots share a slot")
}

/// Returns the slot of a key whose record has a plain name.
fn slot_of(cluster: &Cluster, key: &str) -> u16 {
    let found = cluster.masters().into_iter().find_map(|master| {
        let pattern = format!("sg:{{*}}:api:{key}");
        cluster.node(master).command(&["KEYS", &pattern]).array().first().map(slidegate_testkit::Reply::text)
    });
    cluster.slot_of(found.unwrap())
}

fn name_of(cluster: &Cluster, node: usize, key: &str) -> String {
    let pattern = format!("sg:{{*}}:api:{key}");
    cluster.node(node).command(&["KEYS", &pattern]).array()[0].text()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_primary_is_replaced_by_its_replica() {
    for flavour in Flavour::ALL {
        // Short enough for a fast failover, long enough for a busy machine.
        let cluster = Cluster::start_with(flavour, &["--cluster-node-timeout", "3000"]);
        let limiter = frozen(builder(&cluster)).await;
        let policy = Policy::parse("api", ["10/1h"]).unwrap();
        let keys: Vec<String> = (0..30).map(|number| format!("user:{number}")).collect();
        for key in &keys {
            assert!(eventually(&limiter, policy.key(key).cost(10)).await.is_allowed());
        }
        cluster.wait_in_sync();
        cluster.kill_master(0);
        for key in &keys {
            assert!(
                !eventually(&limiter, policy.key(key)).await.is_allowed(),
                "{key} counts on, {flavour:?}"
            );
        }
    }
}

/// Received responses stay valid when the rest of the batch fails: each slot has a call and a response of its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_that_is_cut_keeps_its_received_responses() {
    // A short node timeout spreads the announced port sooner.
    let cluster = Cluster::start_with(Flavour::Redis, &["--cluster-node-timeout", "3000"]);
    let proxy = FaultProxy::start(cluster.node(0).address());
    let port = proxy.address().port().to_string();
    cluster.node(0).command(&["CONFIG", "SET", "cluster-announce-port", &port]).ok();
    until("all nodes know the announced port", || {
        let has_port =
            |node: usize| format!("{:?}", cluster.node(node).command(&["CLUSTER", "SLOTS"])).contains(&port);
        (0..6).all(has_port).then_some(()).ok_or("not yet".to_owned())
    });
    let limiter = frozen(builder(&cluster)).await;
    let policy = Policy::parse("api", ["1000000/1h"]).unwrap();
    let keys: Vec<String> = (0..300).map(|number| number.to_string()).collect();
    let checks: Vec<_> = keys.iter().map(|key| policy.key(key)).collect();
    assert_eq!(limiter.check_many(&checks).await.into_iter().flatten().count(), 300);
    // Passes about 10 replies of about 100. Repeats if the cut hits a refresh of the slot map instead.
    let mut lost = Vec::new();
    while lost.is_empty() {
        proxy.end_reply_after(600);
        lost = limiter.check_many(&checks).await.into_iter().filter_map(Result::err).collect();
    }
    let behind_the_proxy = usize::try_from(cluster.node(0).command(&["DBSIZE"]).int()).unwrap();
    assert!((20..=behind_the_proxy - 5).contains(&lost.len()), "{} lost of {behind_the_proxy}", lost.len());
    assert!(lost.iter().all(|error| error.is_transient() && error.may_have_counted()), "{lost:?}");
}

/// A cluster needs two more permissions, one of them only during a slot migration.
#[tokio::test]
async fn a_cluster_needs_two_more_permissions() {
    let cluster = start_cluster(Flavour::Redis);
    let with_password = format!("{}?budget_ms=20000", url(&cluster).replace("://", "://slidegate:hush@"));
    let policy = Policy::parse("api", ["10/1m sliding-log"]).unwrap();
    let permit = |more: &[&str]| {
        let permissions =
            "on >hush resetchannels -@all ~sg:* +evalsha +script|load +time +get +mget +set +incrby +del";
        let rules: Vec<&str> =
            ["ACL", "SETUSER", "slidegate"].into_iter().chain(permissions.split(' ')).collect();
        for node in 0..6 {
            cluster.node(node).command(&[&rules[..], more].concat()).ok();
        }
    };
    permit(&[]);
    let error = RedisStore::connect(&with_password).await.unwrap_err();
    assert!(!error.is_transient(), "{error}");

    permit(&["+cluster|slots"]);
    let limiter = StoreLimiter::new(RedisStore::connect(&with_password).await.unwrap());
    for number in 0..20 {
        assert!(limiter.check(policy.key(&format!("k{number}"))).await.unwrap().is_allowed());
    }
    let owner = cluster.masters()[0];
    let name = cluster.node(owner).command(&["KEYS", "*"]).array()[0].text();
    let slot = cluster.slot_of(&name);
    cluster.begin_migration(slot, cluster.masters()[1]);
    cluster.migrate_keys(slot);
    let mut errors = Vec::new();
    for number in 0..20 {
        errors.extend(limiter.check(policy.key(&format!("k{number}"))).await.err());
    }
    let [error] = &errors[..] else { panic!("{errors:?}") };
    assert!(!error.is_transient() && error.to_string().contains("asking"), "{error}");

    permit(&["+cluster|slots", "+asking"]);
    for number in 0..20 {
        assert!(limiter.check(policy.key(&format!("k{number}"))).await.unwrap().is_allowed());
    }
    // Changed quotas publish no invalidation, because no client can subscribe.
    for quotas in
        [["10/2m sliding-log"], ["10/1s sliding-log"], ["10/1m token-bucket"], ["99/1m token-bucket"]]
    {
        let other = Policy::parse("api", quotas).unwrap();
        assert!(limiter.check(other.key("k0")).await.unwrap().is_allowed(), "{quotas:?}");
    }
}

/// Nodes that report no name of their own: the store uses the port alone.
#[tokio::test]
async fn finds_nodes_without_names() {
    for endpoint in ["unknown-endpoint", "hostname"] {
        let cluster = Cluster::start_with(
            Flavour::Redis,
            &["--cluster-preferred-endpoint-type", endpoint, "--cluster-node-timeout", "15000"],
        );
        let seed = format!("redis+cluster://{}?budget_ms=20000", cluster.addresses()[0]);
        let limiter = StoreLimiter::new(RedisStore::connect(&seed).await.unwrap());
        let policy = Policy::parse("api", ["10/1h"]).unwrap();
        for number in 0..20 {
            let key = format!("k{number}");
            assert!(eventually(&limiter, policy.key(&key)).await.is_allowed(), "{endpoint}");
        }
        // A redirection during the migration names only the port.
        let owner = cluster.masters()[0];
        let name = cluster.node(owner).command(&["KEYS", "*"]).array()[0].text();
        let slot = cluster.slot_of(&name);
        cluster.begin_migration(slot, cluster.masters()[1]);
        cluster.migrate_keys(slot);
        for number in 0..20 {
            assert!(
                limiter.check(policy.key(&format!("k{number}"))).await.unwrap().is_allowed(),
                "{endpoint}"
            );
        }
    }
}

/// A single-server URL for a cluster fails on connecting, with a hint in the message.
#[tokio::test]
async fn a_cluster_under_a_single_server_url_fails_with_a_hint() {
    let cluster = start_cluster(Flavour::Redis);
    let connected = cluster.masters().into_iter().map(|master| cluster.node(master).url());
    let mut failures = 0;
    for url in connected {
        if let Err(error) = RedisStore::connect(&format!("{url}?budget_ms=20000")).await {
            assert!(!error.is_transient() && error.to_string().contains("redis+cluster://"), "{error}");
            failures += 1;
        }
    }
    // One node owns the slot of the probe key.
    assert_eq!(failures, 2);
}
