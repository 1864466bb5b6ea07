//! A node's view of the cluster.

use crate::{Reply, Server};

/// Line of `CLUSTER NODES`.
#[derive(Clone, Debug)]
pub(super) struct Member {
    pub(super) id: String,
    flags: Vec<String>,
    /// ID of its master, or `-`.
    pub(super) master: String,
    is_linked: bool,
    /// Single slots, ranges such as `0-5460`, and migrations such as `[42->-ID]`.
    slots: Vec<String>,
}

impl Member {
    fn parse(line: &str) -> Option<Self> {
        let mut words = line.split(' ');
        let id = words.next()?.to_owned();
        let flags = words.nth(1)?.split(',').map(String::from).collect();
        let master = words.next()?.to_owned();
        let is_linked = words.nth(3)? == "connected";
        Some(Self { id, flags, master, is_linked, slots: words.map(String::from).collect() })
    }

    fn is(&self, flag: &str) -> bool {
        self.flags.iter().any(|own| own == flag)
    }

    pub(super) fn is_master(&self) -> bool {
        self.is("master")
    }

    pub(super) fn has_slots(&self) -> bool {
        self.first_slot().is_some()
    }

    /// Returns whether the member is linked and no node reports or suspects a failure.
    pub(super) fn is_healthy(&self) -> bool {
        (self.is_linked || self.is("myself"))
            && !["fail", "fail?", "handshake", "noaddr"].iter().any(|flag| self.is(flag))
    }

    pub(super) fn owns(&self, slot: u16) -> bool {
        self.slots.iter().any(|slots| {
            let (first, last) = slots.split_once('-').unwrap_or((slots, slots));
            let bounds = first.parse::<u16>().ok().zip(last.parse::<u16>().ok());
            bounds.is_some_and(|(first, last)| (first..=last).contains(&slot))
        })
    }

    /// Returns the first slot that the member owns.
    pub(super) fn first_slot(&self) -> Option<u16> {
        self.slots.iter().find_map(|slots| slots.split('-').next()?.parse().ok())
    }

    /// Returns the receiver of a migrating slot. Only a node's own line contains it.
    pub(super) fn migrates_to(&self, slot: u16) -> Option<&str> {
        let opening = format!("[{slot}->-");
        self.slots.iter().find_map(|slots| slots.strip_prefix(&opening)?.strip_suffix(']'))
    }
}

/// Returns all members in the view of this node.
pub(super) fn members(node: &Server) -> Result<Vec<Member>, String> {
    let reply =
        node.try_command(&["CLUSTER", "NODES"]).map_err(|error| format!("{}: {error}", node.address()))?;
    let Reply::Bulk(bytes) = &reply else { return Err(format!("{reply:?}")) };
    let text = String::from_utf8_lossy(bytes);
    text.lines().map(|line| Member::parse(line).ok_or_else(|| format!("not a node: {line}"))).collect()
}
