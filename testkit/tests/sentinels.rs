//! Failover by sentinels.
#![expect(clippy::unwrap_used, reason = "clippy takes only functions marked as tests for tests")]

use slidegate_testkit::{Flavour, Replica, Sentinels, Server};

fn fail_over(flavour: Flavour) {
    let master = Server::start(flavour);
    master.command(&["SET", "a", "1"]).ok();
    let replica = Replica::of(&master);
    let sentinels = Sentinels::start(&master, "limits");
    assert_eq!(sentinels.addresses().len(), 3);
    assert_eq!(sentinels.master().unwrap(), master.address());

    master.kill();
    assert_eq!(sentinels.wait_failover(master.address()), replica.address());
    assert_eq!(replica.command(&["ROLE"]).array()[0].text(), "master");
    replica.command(&["SET", "a", "2"]).ok();
}

#[test]
fn redis_sentinels_fail_over() {
    fail_over(Flavour::Redis);
}

#[test]
fn valkey_sentinels_fail_over() {
    fail_over(Flavour::Valkey);
}
