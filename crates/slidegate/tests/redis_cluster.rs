//! The Redis store on clusters of six real nodes: the conformance suite, slots that move, and primaries that die.

#![cfg(feature = "redis")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod conformance;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use conformance::{START, Subject};
use slidegate::{
    Check, Clock, Decision, KeyStyle, Limiter, ManualClock, Policy, RedisStore, RedisStoreBuilder,
    SystemClock,
};
use slidegate_testkit::{Cluster, FaultProxy, Flavour, until};

/// A cluster that does not take a busy machine for a failure of its servers.
fn steady(flavour: Flavour) -> Cluster {
    Cluster::start_with(flavour, &["--cluster-node-timeout", "15000"])
}

fn url(cluster: &Cluster) -> String {
    let hosts = cluster.addresses().iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
    format!("redis+cluster://{hosts}")
}

fn builder(cluster: &Cluster) -> RedisStoreBuilder {
    RedisStore::builder(&url(cluster)).unwrap().budget(Duration::from_secs(20))
}

/// A store with keys of its own on a cluster that all tests of a flavour share.
async fn subject(cluster: &Cluster) -> Subject<RedisStore> {
    static SUBJECTS: AtomicU64 = AtomicU64::new(0);
    let prefix = format!("subject{}", SUBJECTS.fetch_add(1, Relaxed));
    let clock = ManualClock::at(START);
    let builder = builder(cluster).prefix(&prefix).unwrap().time_from(clock.clone());
    let store = builder.connect().await.unwrap();
    // The script is the same as on a single server; here it is about the way to it.
    Subject { store, set_now: Box::new(move |now_ms| clock.set(now_ms)), effort: 12 }
}

mod on_redis {
    use super::*;

    static CLUSTER: LazyLock<Cluster> = LazyLock::new(|| steady(Flavour::Redis));

    conformance::suite!(subject(&CLUSTER).await);
}

mod on_valkey {
    use super::*;

    static CLUSTER: LazyLock<Cluster> = LazyLock::new(|| steady(Flavour::Valkey));

    conformance::suite!(subject(&CLUSTER).await);
}

async fn frozen(builder: RedisStoreBuilder) -> Limiter<RedisStore> {
    Limiter::new(builder.time_from(ManualClock::at(START)).connect().await.unwrap())
}

/// Long before the cluster's map is asked for again without a reason.
async fn eventually(limiter: &Limiter<RedisStore>, check: Check<'_>) -> Decision {
    for _ in 0..1000 {
        match limiter.check(check).await {
            Ok(decision) => return decision,
            Err(error) => assert!(error.is_transient(), "{error}"),
        }
        SystemClock::default().sleep(10).await;
    }
    panic!("waited in vain for {check:?}");
}

/// Slots move from server to server while many callers spend from keys in them: not one answer is wrong or missing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_that_is_resharded_under_load_loses_nothing() {
    for flavour in Flavour::ALL {
        let cluster = steady(flavour);
        let limiter = Arc::new(frozen(builder(&cluster)).await);
        let policy = Arc::new(Policy::parse("api", ["1000000/1h"]).unwrap());
        let is_over = Arc::new(AtomicBool::new(false));
        for number in 0..4 {
            assert!(limiter.check(policy.key(&format!("user:{number}"))).await.unwrap().is_allowed());
        }
        let callers: Vec<_> = (0..8)
            .map(|number| {
                let (limiter, policy, is_over) = (limiter.clone(), policy.clone(), is_over.clone());
                tokio::spawn(async move {
                    let key = format!("user:{}", number % 4);
                    let mut admitted = 0;
                    while !is_over.load(Relaxed) {
                        admitted += u64::from(limiter.check(policy.key(&key)).await.unwrap().is_allowed());
                    }
                    admitted
                })
            })
            .collect();
        // Each of the four keys' slots.
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
        is_over.store(true, Relaxed);
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

/// While a slot moves, some of its keys are here and some there, and a call for both is refused as a whole.
#[tokio::test]
async fn keys_of_a_slot_on_both_sides_of_its_way_are_asked_for_one_by_one() {
    let cluster = steady(Flavour::Redis);
    let limiter = frozen(builder(&cluster).key_style(KeyStyle::Plain)).await;
    let policy = Policy::parse("api", ["1000000/1h"]).unwrap();
    let (one, other) = two_keys_of_one_slot(&cluster, &limiter, &policy).await;
    let before = limiter.peek(policy.key(&one)).await.unwrap().quotas()[0].used;
    let owner = move_on(&cluster, &one);
    for round in 1..=3 {
        let keys = [&one, &other, &one, &other];
        let checks = keys.map(|key| policy.key(key));
        let answers = limiter.check_many(&checks).await;
        for (place, answer) in answers.into_iter().enumerate() {
            assert!(answer.unwrap().is_allowed(), "round {round}, place {place}");
        }
    }
    assert_eq!(limiter.peek(policy.key(&one)).await.unwrap().quotas()[0].used, before + 6);
    let errors = cluster.node(owner).command(&["INFO", "errorstats"]).text();
    assert!(errors.contains("errorstat_TRYAGAIN:count="), "both were asked for at once: {errors}");
}

/// Once wrong: of more than fit into a call, those behind were decided first.
#[tokio::test]
async fn a_batch_on_both_sides_of_a_slots_way_is_decided_in_order() {
    let cluster = steady(Flavour::Redis);
    let builder = builder(&cluster).key_style(KeyStyle::Plain).budget(Duration::from_secs(20));
    let limiter = frozen(builder).await;
    let policy = Policy::parse("api", ["1000000/1h"]).unwrap();
    let (one, other) = two_keys_of_one_slot(&cluster, &limiter, &policy).await;
    let before = limiter.peek(policy.key(&one)).await.unwrap().quotas()[0].used;
    move_on(&cluster, &one);
    for round in 0..3 {
        let mut checks = vec![policy.key(&other)];
        checks.resize(500, policy.key(&one));
        let answers = limiter.check_many(&checks).await;
        let used: Vec<_> =
            answers.into_iter().skip(1).map(|answer| answer.unwrap().quotas()[0].used).collect();
        let first = before + 499 * round + 1;
        assert_eq!(used, (first..first + 499).collect::<Vec<_>>());
    }
}

/// A key may be at the server that its slot moves to, which does not have the slot yet.
#[tokio::test]
async fn a_policy_is_forgotten_on_both_sides_of_a_slots_way() {
    let cluster = steady(Flavour::Redis);
    let limiter = frozen(builder(&cluster).key_style(KeyStyle::Plain)).await;
    let policy = Policy::parse("api", ["1/1h"]).unwrap();
    let (one, other) = two_keys_of_one_slot(&cluster, &limiter, &policy).await;
    move_on(&cluster, &one);
    assert!(limiter.forget(&policy).await.unwrap().unwrap() >= 2);
    for key in [&one, &other, &"k0".to_owned()] {
        assert!(limiter.check(policy.key(key)).await.unwrap().is_allowed(), "{key}");
    }
}

/// Has the slot of a key begin to move, and the key go first. Returns where the others still are.
fn move_on(cluster: &Cluster, key: &str) -> usize {
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
    limiter: &Limiter<RedisStore>,
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
    unreachable!("there are only so many slots")
}

/// The slot of a key whose record is in the cluster under a plain name.
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
async fn a_primary_that_dies_is_replaced_by_its_replica() {
    for flavour in Flavour::ALL {
        // As soon as that is noticed, but not for a machine that is busy for a moment.
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

/// What has been answered is answered, whatever becomes of the rest: each slot has a call of its own, and an answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_that_is_cut_off_keeps_the_answers_that_came() {
    // The shorter, the sooner all hear of it.
    let cluster = Cluster::start_with(Flavour::Redis, &["--cluster-node-timeout", "3000"]);
    let proxy = FaultProxy::start(cluster.node(0).address());
    let port = proxy.address().port().to_string();
    cluster.node(0).command(&["CONFIG", "SET", "cluster-announce-port", &port]).ok();
    until("all know where it is to be asked", || {
        let is_told =
            |node: usize| format!("{:?}", cluster.node(node).command(&["CLUSTER", "SLOTS"])).contains(&port);
        (0..6).all(is_told).then_some(()).ok_or("not yet".to_owned())
    });
    let limiter = frozen(builder(&cluster)).await;
    let policy = Policy::parse("api", ["1000000/1h"]).unwrap();
    let keys: Vec<String> = (0..300).map(|number| number.to_string()).collect();
    let checks: Vec<_> = keys.iter().map(|key| policy.key(key)).collect();
    assert_eq!(limiter.check_many(&checks).await.into_iter().flatten().count(), 300);
    // Of a hundred of its keys, or so, some ten; at the second attempt if it is a look at the slots that is cut off.
    let mut lost = Vec::new();
    while lost.is_empty() {
        proxy.end_reply_after(600);
        lost = limiter.check_many(&checks).await.into_iter().filter_map(Result::err).collect();
    }
    let behind_the_proxy = usize::try_from(cluster.node(0).command(&["DBSIZE"]).int()).unwrap();
    assert!((20..=behind_the_proxy - 5).contains(&lost.len()), "{} lost of {behind_the_proxy}", lost.len());
    assert!(lost.iter().all(|error| error.is_transient() && error.may_have_counted()), "{lost:?}");
}

/// Two more permissions than elsewhere, one of them only while a slot moves.
#[tokio::test]
async fn a_cluster_needs_two_more_permissions() {
    let cluster = steady(Flavour::Redis);
    let with_password = format!("{}?budget_ms=20000", url(&cluster).replace("://", "://slidegate:hush@"));
    let policy = Policy::parse("api", ["10/1m sliding-log"]).unwrap();
    let permit = |more: &[&str]| {
        let rules =
            "on >hush resetchannels -@all ~sg:* +evalsha +script|load +time +get +mget +set +incrby +del";
        let words: Vec<&str> = ["ACL", "SETUSER", "slidegate"].into_iter().chain(rules.split(' ')).collect();
        for node in 0..6 {
            cluster.node(node).command(&[&words[..], more].concat()).ok();
        }
    };
    permit(&[]);
    let error = RedisStore::connect(&with_password).await.unwrap_err();
    assert!(!error.is_transient(), "{error}");

    permit(&["+cluster|slots"]);
    let limiter = Limiter::new(RedisStore::connect(&with_password).await.unwrap());
    for number in 0..20 {
        assert!(limiter.check(policy.key(&format!("k{number}"))).await.unwrap().is_allowed());
    }
    let owner = cluster.masters()[0];
    let name = cluster.node(owner).command(&["KEYS", "*"]).array()[0].text();
    let slot = cluster.slot_of(&name);
    cluster.begin_migration(slot, cluster.masters()[1]);
    cluster.migrate_keys(slot);
    let mut refused = Vec::new();
    for number in 0..20 {
        refused.extend(limiter.check(policy.key(&format!("k{number}"))).await.err());
    }
    let [error] = &refused[..] else { panic!("{refused:?}") };
    assert!(!error.is_transient() && error.to_string().contains("asking"), "{error}");

    permit(&["+cluster|slots", "+asking"]);
    for number in 0..20 {
        assert!(limiter.check(policy.key(&format!("k{number}"))).await.unwrap().is_allowed());
    }
    // Other limits are told to nobody, since nobody could listen.
    for quotas in
        [["10/2m sliding-log"], ["10/1s sliding-log"], ["10/1m token-bucket"], ["99/1m token-bucket"]]
    {
        let other = Policy::parse("api", quotas).unwrap();
        assert!(limiter.check(other.key("k0")).await.unwrap().is_allowed(), "{quotas:?}");
    }
}

/// Servers that do not know their own name, or say nothing about it: the port alone has to do.
#[tokio::test]
async fn finds_servers_that_do_not_know_their_names() {
    for endpoint in ["unknown-endpoint", "hostname"] {
        let cluster = Cluster::start_with(
            Flavour::Redis,
            &["--cluster-preferred-endpoint-type", endpoint, "--cluster-node-timeout", "15000"],
        );
        let seed = format!("redis+cluster://{}?budget_ms=20000", cluster.addresses()[0]);
        let limiter = Limiter::new(RedisStore::connect(&seed).await.unwrap());
        let policy = Policy::parse("api", ["10/1h"]).unwrap();
        for number in 0..20 {
            let key = format!("k{number}");
            assert!(eventually(&limiter, policy.key(&key)).await.is_allowed(), "{endpoint}");
        }
        // One who knows nothing of the slot's way is told only the port.
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

/// Whoever takes a cluster for a single server is told what to write, and before the first request.
#[tokio::test]
async fn a_cluster_taken_for_a_single_server_says_so() {
    let cluster = steady(Flavour::Redis);
    let connected = cluster.masters().into_iter().map(|master| cluster.node(master).url());
    let mut refused = 0;
    for url in connected {
        if let Err(error) = RedisStore::connect(&format!("{url}?budget_ms=20000")).await {
            assert!(!error.is_transient() && error.to_string().contains("redis+cluster://"), "{error}");
            refused += 1;
        }
    }
    // The probe's slot is somebody's.
    assert_eq!(refused, 2);
}
