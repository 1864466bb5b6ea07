//! Migration of a slot from one master to another.

use super::Cluster;
use super::view::members;
use crate::Reply;
use crate::wait::until;

/// Keys per `MIGRATE` command.
const KEYS_AT_ONCE: &str = "100";
const MIGRATE_TIMEOUT_MS: &str = "5000";

impl Cluster {
    /// Starts the migration of a slot: its owner now replies to requests for missing keys with `ASK`.
    pub fn begin_migration(&self, slot: u16, to: usize) {
        let (from, number) = (self.owner_of(slot), slot.to_string());
        // The receiver comes first. Otherwise it would redirect clients back to the owner.
        self.nodes[to].command(&["CLUSTER", "SETSLOT", &number, "IMPORTING", &self.ids[from]]).ok();
        self.nodes[from].command(&["CLUSTER", "SETSLOT", &number, "MIGRATING", &self.ids[to]]).ok();
    }

    /// Moves all keys of a slot after [`begin_migration`](Self::begin_migration), and returns their number.
    pub fn migrate_keys(&self, slot: u16) -> usize {
        let (from, to) = self.endpoints(slot);
        let port = self.nodes[to].port().to_string();
        let mut moved = 0;
        loop {
            let command = ["CLUSTER", "GETKEYSINSLOT", &slot.to_string(), KEYS_AT_ONCE];
            let keys = self.nodes[from].command(&command).array();
            if keys.is_empty() {
                return moved;
            }
            moved += keys.len();
            let mut migrate: Vec<Vec<u8>> =
                ["MIGRATE", "127.0.0.1", &port, "", "0", MIGRATE_TIMEOUT_MS, "KEYS"].map(Vec::from).into();
            migrate.extend(keys.into_iter().map(|key| match key {
                Reply::Bulk(bytes) => bytes,
                other => panic!("not a key: {other:?}"),
            }));
            self.nodes[from].command(&migrate).ok();
        }
    }

    /// Makes the receiver the owner of a slot whose keys it has, and waits until all nodes know.
    pub fn end_migration(&self, slot: u16) {
        let (from, to) = self.endpoints(slot);
        let mut masters = vec![to, from];
        masters.extend(self.masters().into_iter().filter(|master| ![from, to].contains(master)));
        for master in masters {
            let command = ["CLUSTER", "SETSLOT", &slot.to_string(), "NODE", &self.ids[to]];
            self.nodes[master].command(&command).ok();
        }
        until("all nodes know the new owner", || {
            self.all_agree(|members| {
                members.iter().any(|member| member.id == self.ids[to] && member.owns(slot)).then_some(())
            })
        });
    }

    /// Returns the owner of a migrating slot and its receiver.
    #[track_caller]
    fn endpoints(&self, slot: u16) -> (usize, usize) {
        let from = self.owner_of(slot);
        let members = members(&self.nodes[from]).expect("the owner responds");
        let to = members.iter().find_map(|member| member.migrates_to(slot));
        (from, self.number(to.unwrap_or_else(|| panic!("{slot} is not migrating"))))
    }
}
