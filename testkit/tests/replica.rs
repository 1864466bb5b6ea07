//! Replication and promotion.

use slidegate_testkit::{Flavour, Replica, Reply, Server};

#[test]
fn a_replica_follows_its_master_and_takes_over() {
    for flavour in Flavour::ALL {
        let master = Server::start(flavour);
        master.command(&["SET", "before", "1"]).ok();
        let replica = Replica::of(&master);
        assert_eq!(replica.command(&["GET", "before"]).text(), "1");
        master.command(&["SET", "after", "2"]).ok();
        replica.wait_in_sync(&master);
        assert_eq!(replica.command(&["GET", "after"]).text(), "2");
        let error = replica.command(&["SET", "more", "3"]);
        assert!(matches!(&error, Reply::Error(text) if text.starts_with("READONLY")), "{error:?}");

        master.kill();
        replica.promote();
        replica.command(&["SET", "more", "3"]).ok();
        assert_eq!(replica.command(&["GET", "after"]).text(), "2");
    }
}
