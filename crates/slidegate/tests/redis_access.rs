//! Access to Redis: authentication, permissions, TLS, and the keys that the store leaves.

#![cfg(feature = "redis")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::BTreeSet;
use std::time::Duration;

use slidegate::store::{KeyStyle, RedisStore, SharedDocument, SharedDocuments, StoreLimiter};
use slidegate::{ManualClock, Policy, StoreError};
use slidegate_testkit::{Cluster, Flavour, Replica, Sentinels, Server};

/// The minimal ACL, as documented.
const ACL: &str = "user slidegate on >hush resetchannels &sg:news -@all ~sg:* +evalsha +script|load +time +get +mget +set +incrby +del +publish";

/// Connects with a budget for busy machines.
async fn connect(url: &str) -> Result<RedisStore, StoreError> {
    let separator = if url.contains('?') { '&' } else { '?' };
    RedisStore::connect(&format!("{url}{separator}budget_ms=5000")).await
}

/// The two documented ACLs equal the tested ones, here and on a cluster, plus the permission to subscribe.
#[test]
fn the_documentation_names_the_same_permissions() {
    let page = include_str!("../../../docs/redis.md");
    let documented = |line: &str| {
        let rules = line.split(' ').map(|rule| rule.trim_matches('\'').to_owned());
        rules.filter(|rule| rule.starts_with(['+', '-', '~', '&'])).collect::<BTreeSet<_>>()
    };
    let lists: Vec<_> =
        page.lines().filter(|line| line.contains("ACL SETUSER slidegate")).map(documented).collect();
    let [single, cluster] = &lists[..] else { panic!("two lists: {lists:?}") };
    let mut tested = documented(ACL);
    tested.insert("+subscribe".to_owned());
    assert_eq!(*single, tested);
    let mut on_a_cluster = documented(ACL);
    on_a_cluster.retain(|rule| !["&sg:news", "+publish"].contains(&rule.as_str()));
    on_a_cluster.extend(["+cluster|slots", "+asking"].map(String::from));
    assert_eq!(*cluster, on_a_cluster);
}

/// Returns a policy of each kind that the script handles differently.
fn policies() -> Vec<Policy> {
    [
        &["10/1m"][..],
        &["10/1m strict-window"],
        &["10/1m sliding-log"],
        &["10/1m fixed-window"],
        &["10/1m token-bucket"],
        &["10/1m", "10/1h strict-window"],
    ]
    .into_iter()
    .map(|quotas| Policy::parse(&quotas.join("+"), quotas.iter().copied()).unwrap())
    .collect()
}

/// Uses all operations of the store.
async fn exercise(store: RedisStore) {
    assert!(store.write_document(0, &SharedDocument::new("text".to_owned())).await.unwrap());
    assert_eq!(store.read_document(0).await.unwrap().unwrap().text, "text");
    let limiter = StoreLimiter::new(store);
    for policy in policies() {
        let check = policy.key("k");
        assert!(limiter.check(check.cost(10)).await.unwrap().is_allowed());
        assert!(!limiter.check(check).await.unwrap().is_allowed());
        assert!(!limiter.peek(check).await.unwrap().is_allowed());
        assert_eq!(limiter.refund(check.cost(4)).await.unwrap().remaining(), 4);
        assert_eq!(limiter.reset(check).await.unwrap().remaining(), 10);
        assert!(
            limiter.check_many(&[check; 3]).await.into_iter().all(|response| response.unwrap().is_allowed())
        );
    }
}

#[tokio::test]
async fn the_minimal_acl_is_sufficient_and_each_permission_is_necessary() {
    for flavour in Flavour::ALL {
        let server = Server::start(flavour);
        let rules: Vec<&str> = ACL.split(' ').skip(1).collect();
        let set = |rules: &[&str]| {
            server.command(&["ACL", "DELUSER", "slidegate"]);
            server.command(&[&["ACL", "SETUSER"], rules].concat()).ok();
            server.command(&["SCRIPT", "FLUSH"]);
        };
        let url = server.url().replace("redis://", "redis://slidegate:hush@");
        set(&rules);
        exercise(connect(&url).await.unwrap()).await;

        for permission in rules.iter().filter(|rule| rule.starts_with(['+', '&'])) {
            let fewer: Vec<&str> = rules.iter().copied().filter(|rule| rule != permission).collect();
            set(&fewer);
            // The failure occurs on connecting, before the first request.
            let failure = connect(&url).await.expect_err(permission);
            assert!(!failure.is_transient(), "without {permission}: {failure}");
            let denials =
                ["noperm", "no permissions", "can't run this command", "can't publish", "acl failure"];
            let text = failure.to_string().to_lowercase();
            assert!(denials.iter().any(|denial| text.contains(denial)), "without {permission}: {failure}");
        }
    }
}

#[tokio::test]
async fn forgetting_a_policy_needs_one_more_permission() {
    for flavour in Flavour::ALL {
        let server = Server::start(flavour);
        let rules: Vec<&str> = ["ACL", "SETUSER"].into_iter().chain(ACL.split(' ').skip(1)).collect();
        server.command(&rules).ok();
        let url = server.url().replace("redis://", "redis://slidegate:hush@");
        let limiter = StoreLimiter::new(connect(&url).await.unwrap());
        let policy = Policy::parse("api", ["1/1h"]).unwrap();
        assert!(limiter.check(policy.key("k")).await.unwrap().is_allowed());
        let error = limiter.forget(&policy).await.unwrap_err();
        assert!(!error.is_transient() && error.to_string().contains("docs/redis.md"), "{error}");
        server.command(&["ACL", "SETUSER", "slidegate", "+scan"]).ok();
        assert_eq!(limiter.forget(&policy).await.unwrap(), Some(1));
        assert!(limiter.check(policy.key("k")).await.unwrap().is_allowed());
    }
}

/// Prefixes that look like patterns, and both key styles.
#[tokio::test]
async fn a_policy_is_forgotten_under_its_own_prefix_only() {
    let server = Server::start(Flavour::Redis);
    let policy = Policy::parse("api", ["1/1h"]).unwrap();
    let mut limiters = Vec::new();
    for prefix in ["a*", "ab", "a?", "[ab]", "a-b", "a^", "sg"] {
        let builder = RedisStore::builder(&server.url()).unwrap().prefix(prefix).unwrap();
        let styled = if limiters.len() % 2 == 0 { builder.key_style(KeyStyle::Plain) } else { builder };
        let limiter = StoreLimiter::new(styled.connect().await.unwrap());
        for key in ["x", "}{*?[", "\n"] {
            assert!(limiter.check(policy.key(key)).await.unwrap().is_allowed());
        }
        limiters.push(limiter);
    }
    server.command(&["SET", "sg:note", "1 {}"]).ok();
    server.command(&["SET", "sg:{mine}", "1"]).ok();
    for place in 0..limiters.len() {
        assert_eq!(limiters[place].forget(&policy).await.unwrap(), Some(3), "{place}");
        for (other, limiter) in limiters.iter().enumerate() {
            let is_empty = limiter.peek(policy.key("}{*?[")).await.unwrap().is_allowed();
            assert_eq!(is_empty, other <= place, "{place} and {other}");
        }
    }
    assert_eq!(server.command(&["DBSIZE"]).int(), 2);
}

#[tokio::test]
async fn a_replica_is_rejected_on_connecting_and_a_full_server_still_denies() {
    let server = Server::start(Flavour::Redis);
    let replica = Replica::of(&server);
    let error = connect(&replica.url()).await.unwrap_err();
    assert!(error.is_transient() && error.to_string().contains("READONLY"), "{error}");
    // A server without memory still denies, and reports that it is full for all other checks.
    let policy = Policy::parse("api", ["1/1h"]).unwrap();
    let limiter = StoreLimiter::new(connect(&server.url()).await.unwrap());
    assert!(limiter.check(policy.key("k")).await.unwrap().is_allowed());
    server.command(&["CONFIG", "SET", "maxmemory", "1"]).ok();
    let limiter = StoreLimiter::new(connect(&server.url()).await.unwrap());
    assert!(!limiter.check(policy.key("k")).await.unwrap().is_allowed());
    assert!(limiter.check(policy.key("other")).await.unwrap_err().is_full());
}

#[tokio::test]
async fn a_primary_behind_sentinels_needs_one_more_permission() {
    let server = Server::start(Flavour::Redis);
    let sentinels = Sentinels::start(&server, "main");
    let hosts = sentinels.addresses().iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
    for is_enough in [false, true] {
        let rules: Vec<&str> = ["ACL", "SETUSER"].into_iter().chain(ACL.split(' ').skip(1)).collect();
        server.command(&[&rules[..], if is_enough { &["+role"] } else { &[] }].concat()).ok();
        let connected = connect(&format!("redis+sentinel://slidegate:hush@{hosts}/main")).await;
        assert_eq!(connected.is_ok(), is_enough, "{connected:?}");
        if let Ok(store) = connected {
            exercise(store).await;
        }
    }
    let error = connect(&format!("redis+sentinel://{hosts}/other")).await.unwrap_err();
    assert!(error.to_string().contains("knows no primary called \"other\""), "{error}");
}

#[tokio::test]
async fn sentinels_have_separate_credentials() {
    let server = Server::start(Flavour::Redis);
    let sentinels = Sentinels::start_many(1, &server, "main");
    let sentinel = &sentinels.sentinels()[0];
    let least = "+sentinel|get-master-addr-by-name";
    sentinel.command(&["ACL", "SETUSER", "watcher", "reset", "on", ">their&s", least]).ok();
    sentinel.command(&["ACL", "SETUSER", "default", "resetpass"]).ok();
    let url = format!("redis+sentinel://{}/main", sentinel.address());
    let error = connect(&url).await.unwrap_err();
    assert!(!error.is_transient() && error.to_string().contains("NOAUTH"), "{error}");
    let error = connect(&format!("{url}?sentinel_user=watcher&sentinel_password=x")).await.unwrap_err();
    assert!(!error.is_transient() && error.to_string().contains("WRONGPASS"), "{error}");
    let url = format!("{url}?sentinel_user=watcher&sentinel_password=their%26s");
    exercise(connect(&url).await.unwrap()).await;
}

/// Simulates a failover that the sentinel missed.
#[tokio::test]
async fn a_replica_named_as_primary_by_a_sentinel_is_rejected() {
    let server = Server::start(Flavour::Redis);
    let replica = Replica::of(&server);
    let sentinels = Sentinels::start_many(1, &replica, "main");
    let error = connect(&format!("redis+sentinel://{}/main", sentinels.addresses()[0])).await.unwrap_err();
    let expected = format!(
        "redis at {}: the sentinel names it as the primary, but its role is another one",
        replica.address()
    );
    assert_eq!((error.is_transient(), error.to_string()), (true, expected));
}

#[tokio::test]
async fn sentinels_and_clusters_support_tls() {
    let server = Server::builder(Flavour::Redis).tls().start();
    let ca = server.tls().ca_path().display().to_string();
    let sentinels = Sentinels::start_tls(&server, "main");
    let url = format!("rediss+sentinel://127.0.0.1:{}/main", sentinels.sentinels()[0].tls().port());
    exercise(connect(&format!("{url}?ca={ca}")).await.unwrap()).await;
    let error = connect(&url).await.unwrap_err();
    assert!(error.to_string().contains("certificate"), "an unknown certificate: {error}");

    let cluster = Cluster::start_tls(Flavour::Redis);
    let url = format!("rediss+cluster://{}", cluster.addresses()[0]);
    let store = connect(&format!("{url}?ca={}", cluster.ca_path().display())).await.unwrap();
    exercise(store).await;
    let error = connect(&url).await.unwrap_err();
    assert!(error.to_string().contains("certificate"), "an unknown certificate: {error}");
}

/// Client certificates are required, which is Redis's default.
#[tokio::test]
async fn a_server_that_requires_client_certificates_gets_one() {
    let server = Server::builder(Flavour::Redis).tls().args(["--tls-auth-clients", "yes"]).start();
    let url = format!("{}?ca={}", server.tls().url(), server.tls().ca_path().display());
    let error = connect(&url).await.unwrap_err();
    assert!(!error.is_transient() && error.to_string().contains("use ?cert=FILE&key=FILE"), "{error}");
    let [cert, key] = server.tls().signed_paths().map(|path| path.display().to_string());
    exercise(connect(&format!("{url}&cert={cert}&key={key}")).await.unwrap()).await;
    let error = connect(&format!("{url}&cert={cert}")).await.unwrap_err();
    assert_eq!(error.to_string(), "key: it is required together with cert");
    // Invalid files are a permanent error.
    let ca = server.tls().ca_path().display().to_string();
    for wrong in [format!("ca={ca}&cert={key}&key={cert}"), format!("ca={key}")] {
        let error = connect(&format!("{}?{wrong}", server.tls().url())).await.unwrap_err();
        assert!(!error.is_transient(), "{wrong}: {error}");
    }
    // A path with "certificate" in its name is not a certificate error.
    let error = connect("redis+unix:///nowhere/certificate.sock").await.unwrap_err();
    assert!(error.is_transient(), "{error}");
}

#[tokio::test]
async fn connects_over_tls_over_a_socket_and_with_a_password() {
    let server =
        Server::builder(Flavour::Redis).tls().unix_socket().args(["--requirepass", "p@ss/word"]).start();
    let with_password = |url: &str| url.replace("://", "://:p%40ss%2Fword@");

    let ca = server.tls().ca_path().display().to_string();
    let tls = with_password(&server.tls().url());
    exercise(connect(&format!("{tls}?ca={ca}&prefix=tls")).await.unwrap()).await;
    let error = connect(&tls).await.unwrap_err();
    assert!(error.to_string().contains("certificate"), "an unknown certificate: {error}");
    assert!(!error.is_transient(), "{error}");

    let plain = with_password(&server.url()).replace("redis:", "rediss:");
    let error = connect(&plain).await.unwrap_err();
    assert!(error.is_transient() && error.to_string().contains("does it speak TLS at this port"), "{error}");

    let socket = format!("redis+unix://{}?prefix=socket", server.socket_path().display());
    exercise(connect(&with_password(&socket)).await.unwrap()).await;
    // The same key name in another database has a separate count.
    exercise(connect(&with_password(&format!("{socket}&database=2"))).await.unwrap()).await;

    let url = format!("{}/3?prefix=third", with_password(&server.url()));
    exercise(connect(&url).await.unwrap()).await;
    let error = connect(&format!("{}/99", with_password(&server.url()))).await.unwrap_err();
    assert!(!error.is_transient(), "no such database: {error}");
    let error = connect(&with_password(&server.url()).replace("redis:", "redis+cluster:")).await.unwrap_err();
    assert!(!error.is_transient(), "not a cluster: {error}");

    for (url, hint) in [
        (server.url(), "the server requires a password: use redis://:PASSWORD@HOST"),
        (server.url().replace("://", "://:wrong@"), "check the user and the password in the URL"),
    ] {
        let error = connect(&url).await.unwrap_err();
        assert!(!error.is_transient() && error.to_string().contains(hint), "{error}");
        assert!(!error.to_string().contains("wrong@"), "{error}");
    }
}

#[tokio::test]
async fn another_database_has_other_counts_and_needs_one_more_permission() {
    let server = Server::start(Flavour::Redis);
    for is_enough in [false, true] {
        let rules: Vec<&str> = ["ACL", "SETUSER"].into_iter().chain(ACL.split(' ').skip(1)).collect();
        server.command(&[&rules[..], if is_enough { &["+select"] } else { &[] }].concat()).ok();
        let url = server.url().replace("redis://", "redis://slidegate:hush@") + "/5";
        assert_eq!(connect(&url).await.is_ok(), is_enough);
    }
    let policy = Policy::parse("api", ["1/1h"]).unwrap();
    for database in ["", "/0", "/1"] {
        let store = connect(&format!("{}{database}", server.url())).await.unwrap();
        let is_allowed = StoreLimiter::new(store).check(policy.key("k")).await.unwrap().is_allowed();
        assert_eq!(is_allowed, database != "/0", "{database:?}");
    }
}

/// A record expires when it counts nothing any more.
#[tokio::test]
async fn records_live_as_long_as_they_count() {
    let server = Server::start(Flavour::Redis);
    let limiter = StoreLimiter::new(connect(&server.url()).await.unwrap());
    for (quotas, cost, longest_ms, shortest_ms) in [
        (&["100/1h"][..], 1, 7_200_000, 7_190_000),
        (&["100000/1h"], 1, 7_200_000, 3_600_000),
        // Timestamps are the end of the millisecond.
        (&["100/1h strict-window"], 1, 3_600_001, 3_590_000),
        (&["100/1h sliding-log"], 1, 3_600_001, 3_590_000),
        (&["100/1h fixed-window anchor=first-request"], 1, 3_600_000, 3_590_000),
        // A hundredth of the bucket refills in a hundredth of the time.
        (&["100/1h token-bucket"], 1, 36_001, 30_000),
        (&["100/1h token-bucket"], 99, 3_564_001, 3_560_000),
        (&["100/1h sliding-log", "5/1s"], 1, 3_600_001, 3_590_000),
    ] {
        let policy = Policy::parse("life", quotas.iter().copied()).unwrap();
        let decision = limiter.check(policy.key("k").cost(cost)).await.unwrap();
        assert!(decision.is_allowed());
        let names = server.command(&["KEYS", "*"]).array();
        assert_eq!(names.len(), 1, "one key for {quotas:?}");
        let life_ms = server.command(&["PTTL", &names[0].text()]).int();
        assert!((shortest_ms..=longest_ms).contains(&life_ms), "{quotas:?}: {life_ms}");
        let longest_reset_ms = decision.quotas().iter().map(|quota| quota.reset_after_ms).max().unwrap();
        assert!(
            life_ms.cast_unsigned() + 5_000 >= longest_reset_ms,
            "{quotas:?}: {life_ms} of {longest_reset_ms}"
        );
        // A full refund deletes the record.
        let _ = limiter.refund(policy.key("k").cost(cost)).await.unwrap();
        assert_eq!(server.command(&["DBSIZE"]).int(), 0, "{quotas:?}");
    }
}

/// A changed quota that counts longer prolongs the record, even on a denial. Otherwise the record would expire with the
/// former quota and the limit could be spent twice.
#[tokio::test]
async fn a_quota_change_prolongs_the_record() {
    let server = Server::start(Flavour::Redis);
    let limiter = StoreLimiter::new(connect(&server.url()).await.unwrap());
    for (before, after) in [
        ("3/10s", "3/1h"),
        ("3/10s strict-window", "3/1h strict-window"),
        ("3/10s sliding-log", "3/1h sliding-log"),
        ("3/10s fixed-window", "3/1h fixed-window"),
        ("3/10s token-bucket", "3/1h token-bucket"),
        ("3000/10s token-bucket burst=3", "3/1h token-bucket"),
        ("3000/10s token-bucket burst=3", "3/10s token-bucket"),
    ] {
        let [before, after] = [before, after].map(|quota| Policy::parse("changing", [quota]).unwrap());
        let _ = limiter.reset(before.key("k")).await.unwrap();
        assert!(limiter.check(before.key("k").cost(3)).await.unwrap().is_allowed());
        let denied = limiter.check(after.key("k").cost(3)).await.unwrap();
        let Some(retry_ms) = denied.retry_after_ms() else { panic!("{denied:?}") };
        let names = server.command(&["KEYS", "*"]).array();
        let life_ms = server.command(&["PTTL", &names[0].text()]).int();
        assert!(life_ms.cast_unsigned() + 1000 > retry_ms, "{after:?}: {life_ms} of {retry_ms}");
    }
}

/// A denial, a peek and an empty refund write nothing, according to the server's command statistics.
#[tokio::test]
async fn a_denial_writes_nothing() {
    let server = Server::start(Flavour::Redis);
    let clock = ManualClock::at(1_800_000_000_000);
    let builder = RedisStore::builder(&server.url()).unwrap();
    let limiter = StoreLimiter::new(builder.time_from(clock.clone()).connect().await.unwrap());
    for policy in policies() {
        assert!(limiter.check(policy.key("k").cost(10)).await.unwrap().is_allowed());
    }
    let writes = || {
        let info = server.command(&["INFO", "commandstats"]).text();
        let is_write = |line: &&str| {
            ["cmdstat_set:", "cmdstat_incrby:", "cmdstat_del:"].iter().any(|name| line.starts_with(name))
        };
        info.lines()
            .filter(is_write)
            .map(|line| line.split(',').next().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    let before = writes();
    assert!(
        before.iter().any(|calls| calls.starts_with("cmdstat_set:calls=7")),
        "one write on connecting: {before:?}"
    );
    for ms in 0..20 {
        clock.set(1_800_000_000_000 + ms);
        for policy in policies() {
            assert!(!limiter.check(policy.key("k")).await.unwrap().is_allowed());
            assert!(!limiter.check(policy.key("k").cost(11)).await.unwrap().is_allowed());
            assert!(!limiter.peek(policy.key("k")).await.unwrap().is_allowed());
            assert!(limiter.check(policy.key("k").cost(0)).await.unwrap().is_allowed());
            assert!(limiter.refund(policy.key("unused")).await.unwrap().is_allowed());
            assert!(limiter.reset(policy.key("unused")).await.unwrap().is_allowed());
        }
    }
    assert_eq!(writes(), before);
}

#[tokio::test]
async fn key_names_are_hashed_by_default() {
    let server = Server::start(Flavour::Redis);
    let policy = Policy::parse("logins", ["5/1h"]).unwrap();
    let name = |builder: slidegate::store::RedisStoreBuilder| {
        let (server, policy) = (&server, &policy);
        async move {
            let limiter = StoreLimiter::new(builder.connect().await.unwrap());
            assert!(limiter.check(policy.key("ann@example.com")).await.unwrap().is_allowed());
            let name = server.command(&["KEYS", "*"]).array()[0].text();
            server.command(&["FLUSHALL"]);
            name
        }
    };
    let builder = || RedisStore::builder(&server.url()).unwrap();
    let hashed = name(builder()).await;
    assert!(hashed.starts_with("sg:{") && hashed.ends_with('}') && hashed.len() == 27, "{hashed}");
    assert_eq!(name(builder()).await, hashed, "all clients of a server use the same name");
    assert_ne!(name(builder().secret("hush")).await, hashed);
    let plain = name(builder().key_style(KeyStyle::Plain).prefix("shop").unwrap()).await;
    assert!(plain.starts_with("shop:{") && plain.ends_with("}:logins:ann@example.com"), "{plain}");
}

/// The store uses the server's time and measures the skew from the first connection on.
#[tokio::test]
async fn the_clock_skew_is_measured() {
    let server = Server::builder(Flavour::Redis).faketime("+1h").start();
    let store = connect(&server.url()).await.unwrap();
    let ahead_ms = store.server_ahead_ms().unwrap();
    assert!((3_590_000..3_610_000).contains(&ahead_ms), "{ahead_ms}");
    let limiter = StoreLimiter::new(store);
    let policy = Policy::parse("api", ["1/1h"]).unwrap();
    server.set_faketime("-2h");
    assert!(limiter.check(policy.key("k")).await.unwrap().is_allowed());
    let ahead_ms = limiter.store().server_ahead_ms().unwrap();
    assert!((-7_210_000..-7_190_000).contains(&ahead_ms), "measured again with each response: {ahead_ms}");
}

#[tokio::test]
async fn waits_by_the_servers_time() {
    let server = Server::start(Flavour::Redis);
    let limiter = StoreLimiter::new(connect(&server.url()).await.unwrap());
    let policy = Policy::parse("api", ["1/50ms fixed-window anchor=first-request"]).unwrap();
    for _ in 0..4 {
        assert!(limiter.wait(policy.key("k"), Duration::from_secs(20)).await.unwrap().is_allowed());
    }
}
