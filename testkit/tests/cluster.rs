//! Clusters of each flavour: redirections, the migration of a slot, and a failover.
#![expect(clippy::unwrap_used, reason = "clippy takes only functions marked as tests for tests")]

use slidegate_testkit::{Cluster, Flavour, Reply};

fn exercise(flavour: Flavour) {
    let cluster = Cluster::start(flavour);
    assert_eq!(cluster.addresses().len(), 6);
    let mut masters = cluster.masters();
    masters.sort_unstable();
    assert_eq!(masters, [0, 1, 2]);
    assert_eq!([0, 1, 2].map(|master| cluster.replica_of(master)), [3, 4, 5]);
    assert_eq!(
        [0, 5_460, 5_461, 10_921, 10_922, 16_383].map(|slot| cluster.owner_of(slot)),
        [0, 0, 1, 1, 2, 2]
    );

    move_a_slot(&cluster);
    lose_a_master(&cluster);
}

fn move_a_slot(cluster: &Cluster) {
    let slot = cluster.slot_of("{user}:1");
    let from = cluster.owner_of(slot);
    let to = (from + 1) % 3;
    let get = |number: usize, key: &str| cluster.node(number).command(&["GET", key]);
    let is_redirect = |reply: Reply, kind: &str, number: usize| matches!(reply, Reply::Error(text) if text == format!("{kind} {slot} {}", cluster.node(number).address()));
    for number in 0..250 {
        cluster.node(from).command(&["SET", &format!("{{user}}:{number}"), "1"]).ok();
    }
    assert!(is_redirect(get(to, "{user}:1"), "MOVED", from));

    cluster.begin_migration(slot, to);
    assert_eq!(get(from, "{user}:1").text(), "1");
    assert!(is_redirect(get(from, "{user}:missing"), "ASK", to));

    assert_eq!(cluster.migrate_keys(slot), 250);
    assert!(is_redirect(get(from, "{user}:1"), "ASK", to));
    let mut receiver = cluster.node(to).connect().unwrap();
    receiver.command(&["ASKING"]).unwrap().ok();
    assert_eq!(receiver.command(&["GET", "{user}:1"]).unwrap().text(), "1");

    cluster.end_migration(slot);
    assert_eq!(cluster.owner_of(slot), to);
    assert_eq!(get(to, "{user}:1").text(), "1");
    assert!(is_redirect(get(from, "{user}:1"), "MOVED", to));
}

fn lose_a_master(cluster: &Cluster) {
    let slot = cluster.slot_of("a");
    let master = cluster.owner_of(slot);
    let replica = cluster.replica_of(master);
    let mut writing = cluster.node(master).connect().unwrap();
    writing.command(&["SET", "a", "1"]).unwrap().ok();
    assert_eq!(writing.command(&["WAIT", "1", "10000"]).unwrap().int(), 1, "the replica has it");

    assert_eq!(cluster.kill_master(master), replica);
    assert_eq!(cluster.owner_of(slot), replica);
    assert_eq!(cluster.node(replica).command(&["GET", "a"]).text(), "1");
    assert!(!cluster.masters().contains(&master) && cluster.masters().contains(&replica));

    cluster.node(master).restart();
    cluster.wait_healthy();
    assert_eq!((cluster.owner_of(slot), cluster.replica_of(replica)), (replica, master));
}

#[test]
fn redis_moves_slots_and_fails_over() {
    exercise(Flavour::Redis);
}

#[test]
fn valkey_moves_slots_and_fails_over() {
    exercise(Flavour::Valkey);
}
