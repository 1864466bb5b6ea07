//! A cluster: which server has which slot, and what to do when it no longer has.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Weak};

use arc_swap::ArcSwap;
use redis::Value;
use tokio::sync::{Notify, watch};

use super::call::{Call, Request};
use super::endpoint::Target;
use super::node::{self, NodeHandle, Shared};
use super::staggered::first_of;
use super::url::{Address, parse_address};
use crate::clock::{Clock, SystemClock};
use crate::error::StoreError;
use crate::store::backoff::Backoff;
use crate::store::remote::Waiting;
use crate::store::supervise::supervise;

const SLOTS: usize = 16384;
/// More often than this nobody is sent elsewhere.
const MAX_HOPS: u8 = 5;
/// Even if nobody complains.
const REFRESH_EVERY_MS: u64 = 30_000;
/// For so many refreshes a server without slots is kept.
const MAX_ABSENT: u8 = 10;

/// The servers and their slots, as last heard.
#[derive(Default)]
struct Map {
    /// With how often in a row they were not among those that have slots: one that slots move to has none yet.
    nodes: HashMap<Address, (NodeHandle, u8)>,
    /// From the first slot on, by ranges in order.
    ranges: Vec<Range>,
}

/// The first and the last slot, and who has them.
pub(super) type Range = (u16, u16, Address);

impl Map {
    fn owner(&self, slot: u16) -> Option<&NodeHandle> {
        self.nodes.get(self.address(slot)?).map(|(node, _)| node)
    }

    fn address(&self, slot: u16) -> Option<&Address> {
        let index = self.ranges.partition_point(|(_, last, _)| *last < slot);
        let (first, _, address) = self.ranges.get(index)?;
        (*first <= slot).then_some(address)
    }
}

/// The way to a cluster.
pub(super) struct Cluster {
    map: ArcSwap<Map>,
    seeds: Vec<Address>,
    shared: Arc<Shared>,
    complaints: Arc<Notify>,
    known: watch::Sender<Option<Result<(), StoreError>>>,
    this: Weak<Self>,
}

impl Cluster {
    pub(super) fn start(seeds: Vec<Address>, shared: Arc<Shared>) -> Arc<Self> {
        let cluster = Arc::new_cyclic(|this| Self {
            map: ArcSwap::default(),
            seeds,
            shared,
            complaints: Arc::default(),
            known: watch::channel(None).0,
            this: Weak::clone(this),
        });
        let this = Arc::downgrade(&cluster);
        supervise("the task of a redis cluster", move || keep_refreshed(Weak::clone(&this)));
        cluster
    }

    /// By how much the clock of the server that is furthest off is ahead.
    pub(super) fn server_ahead_ms(&self) -> Option<i64> {
        let map = self.map.load();
        map.nodes
            .values()
            .filter_map(|(node, _)| node.skew.server_ahead_ms())
            .max_by_key(|ms| ms.unsigned_abs())
    }

    /// Waits until the slots are known, or cannot be.
    pub(super) async fn ready(&self) -> Result<(), StoreError> {
        let mut known = self.known.subscribe();
        match known.wait_for(Option::is_some).await.as_deref() {
            Ok(Some(result)) => result.clone(),
            _ => Err(StoreError::transient("redis: the cluster's task is gone")),
        }
    }

    /// Waits until it is known of all servers whether they can be reached. Those who use one that cannot will hear why.
    pub(super) async fn acquainted(&self) -> Result<(), StoreError> {
        self.ready().await?;
        for (node, _) in self.map.load_full().nodes.values() {
            let _ = node.ready().await;
        }
        Ok(())
    }

    /// Of `slots`, the first of each server.
    pub(super) fn one_of_each(&self, slots: impl Iterator<Item = u16>) -> Vec<usize> {
        let map = self.map.load_full();
        let mut owners: HashSet<&Address> = map.ranges.iter().map(|(_, _, address)| address).collect();
        let is_first =
            |slot: &(usize, u16)| map.address(slot.1).is_some_and(|address| owners.remove(address));
        slots.enumerate().filter(is_first).map(|(place, _)| place).collect()
    }

    /// The server that has the slot, or why nobody does.
    pub(super) async fn node(&self, slot: u16) -> Result<NodeHandle, StoreError> {
        if let Some(node) = self.map.load().owner(slot) {
            return Ok(node.clone());
        }
        self.ready().await?;
        self.owner(slot)
    }

    /// Where the server is that has the slot.
    pub(super) async fn address(&self, slot: u16) -> Result<Address, StoreError> {
        self.ready().await?;
        self.map.load().address(slot).cloned().ok_or_else(|| self.ownerless(slot))
    }

    fn owner(&self, slot: u16) -> Result<NodeHandle, StoreError> {
        self.map.load().owner(slot).cloned().ok_or_else(|| self.ownerless(slot))
    }

    fn ownerless(&self, slot: u16) -> StoreError {
        self.refresh();
        StoreError::transient(format!("redis: no server of the cluster has slot {slot}"))
    }

    /// Somebody saw that the map is wrong.
    pub(super) fn refresh(&self) {
        self.complaints.notify_one();
    }

    /// Sends a call, which was not executed, to the server that was named.
    pub(super) fn redirect(&self, call: Call, address: &str, asked_host: &str) {
        let is_asking = call.is_asking();
        if !is_asking {
            self.refresh();
        }
        // Without a host it is at the same one, at another port.
        let full = match address.strip_prefix("?:").or(address.strip_prefix(':')) {
            Some(port) if asked_host.contains(':') => format!("[{asked_host}]:{port}"),
            Some(port) => format!("{asked_host}:{port}"),
            None => address.to_owned(),
        };
        let node = parse_address(&full, 6379).ok().map(|address| self.node_at(&address));
        pass_on(call, |_| {
            node.clone().ok_or_else(|| {
                StoreError::transient(format!("redis: moved to {address:?}, which is no address"))
            })
        });
    }

    /// Sends a call, which was not executed, again.
    pub(super) fn resend(&self, call: Call) {
        pass_on(call, |request| self.owner(request.slot));
    }

    /// The server at an address, which may be a new one.
    fn node_at(&self, address: &Address) -> NodeHandle {
        if let Some((node, _)) = self.map.load().nodes.get(address) {
            return node.clone();
        }
        let node = self.start_node(address);
        self.map.rcu(|map| {
            let mut nodes = map.nodes.clone();
            nodes.entry(address.clone()).or_insert_with(|| (node.clone(), 0));
            Map { nodes, ranges: map.ranges.clone() }
        });
        self.map.load().nodes.get(address).map_or(node, |(node, _)| node.clone())
    }

    fn start_node(&self, address: &Address) -> NodeHandle {
        let target = Target::At(self.shared.access.at(address));
        node::start(target, Arc::clone(&self.shared), Weak::clone(&self.this))
    }

    /// Learns the slots from whoever answers first. Returns whether anything is new.
    async fn learn(&self) -> Result<bool, StoreError> {
        let map = self.map.load_full();
        let places = map.nodes.keys().chain(&self.seeds);
        let questions = places.map(|address| self.ask(address)).collect();
        let ranges = first_of(questions, "redis: no server of the cluster is known").await?;
        Ok(self.adopt(&ranges))
    }

    /// The ranges as they are now.
    pub(super) async fn ranges_now(&self) -> Result<Vec<Range>, StoreError> {
        self.learn().await?;
        Ok(self.map.load().ranges.clone())
    }

    async fn ask(&self, address: &Address) -> Result<Vec<Range>, StoreError> {
        let access = &self.shared.access;
        let mut link = access.connect(&access.at(address)).await?;
        let mut question = redis::cmd("CLUSTER");
        question.arg("SLOTS");
        let ranges = read_ranges(link.ask(&question, access.budget).await?, address);
        if ranges.is_empty() {
            return Err(StoreError::transient(format!("redis at {address}: it knows of no slots")));
        }
        Ok(ranges)
    }

    /// Keeps the servers that have slots or had some lately, with their connections. Returns whether anything is new.
    fn adopt(&self, ranges: &[Range]) -> bool {
        let is_new = self.map.load().ranges != ranges;
        let mut started: HashMap<Address, NodeHandle> = HashMap::new();
        self.map.rcu(|old| {
            let mut nodes: HashMap<_, _> = old
                .nodes
                .iter()
                .map(|(address, (node, absent))| (address.clone(), (node.clone(), absent.saturating_add(1))))
                .collect();
            for (_, _, address) in ranges {
                let mut start =
                    || started.entry(address.clone()).or_insert_with(|| self.start_node(address)).clone();
                nodes.entry(address.clone()).or_insert_with(|| (start(), 0)).1 = 0;
            }
            nodes.retain(|_, (_, absent)| *absent <= MAX_ABSENT);
            Map { nodes, ranges: ranges.to_vec() }
        });
        is_new
    }
}

/// Sends the requests of a call, which are of one slot, to whoever has it now; together, as they may be of one key.
fn pass_on(call: Call, node: impl FnOnce(&Request) -> Result<NodeHandle, StoreError>) {
    let mut going = Vec::with_capacity(call.requests.len());
    for mut request in call.requests {
        request.hops += 1;
        if request.hops > MAX_HOPS {
            let error = format!("redis: slot {} was moved {MAX_HOPS} times in a row", request.slot);
            request.answer(Err(StoreError::transient(error)));
        } else {
            going.push(request);
        }
    }
    let Some(first) = going.first() else { return };
    match node(first) {
        Ok(node) => node.queue.send_together_now(going),
        Err(error) => Waiting::Many(going).refuse(&error),
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // The task that refreshes the map finds it gone.
        self.complaints.notify_one();
    }
}

/// Refreshes the map when somebody complains, and now and then, for as long as anybody uses it.
async fn keep_refreshed(this: Weak<Cluster>) {
    let clock = SystemClock::default();
    let mut backoff = Backoff::default();
    loop {
        let Some(cluster) = this.upgrade() else { return };
        let learned = cluster.learn().await;
        let pause_ms = match &learned {
            Ok(true) => {
                backoff = Backoff::default();
                backoff.next_ms()
            }
            // Whoever complains, it is as it was: the servers have not agreed yet.
            Ok(false) => backoff.next_ms(),
            Err(error) => {
                tracing::warn!(%error, "cannot learn the slots of the redis cluster");
                backoff.next_ms()
            }
        };
        let is_known = learned.is_ok();
        cluster.known.send_replace(Some(learned.map(|_| ())));
        let complaints = Arc::clone(&cluster.complaints);
        // Not held while waiting, or the cluster would outlive its store.
        drop(cluster);
        clock.sleep(pause_ms).await;
        if is_known {
            tokio::select! {
                () = complaints.notified() => {}
                () = clock.sleep(REFRESH_EVERY_MS) => {}
            }
        }
    }
}

/// Reads `CLUSTER SLOTS`: per range the first and the last slot, the primary and its replicas.
fn read_ranges(rows: Vec<Value>, asked: &Address) -> Vec<Range> {
    let mut ranges: Vec<_> = rows.into_iter().filter_map(|row| read_range(row, asked)).collect();
    ranges.sort_unstable_by_key(|(first, _, _)| *first);
    ranges
}

fn read_range(row: Value, asked: &Address) -> Option<Range> {
    let Value::Array(row) = row else { return None };
    let [Value::Int(first), Value::Int(last), Value::Array(primary), ..] = row.as_slice() else {
        return None;
    };
    let [host, Value::Int(port), ..] = primary.as_slice() else { return None };
    let text = |host: &Value| match host {
        Value::BulkString(host) => String::from_utf8(host.clone()).ok().filter(|host| !host.is_empty()),
        _ => None,
    };
    // A server that does not know its own name says so by a question mark, perhaps with its address beside. One that says
    // nothing wants to be asked where it was, whatever its address is.
    let host = match text(host) {
        Some(host) if host == "?" => metadata_ip(primary).and_then(text),
        host => host,
    };
    let host = host.unwrap_or_else(|| asked.host.clone());
    let slot = |slot: &i64| u16::try_from(*slot).ok().filter(|slot| usize::from(*slot) < SLOTS);
    Some((slot(first)?, slot(last)?, Address { host, port: u16::try_from(*port).ok()? }))
}

/// The address that stands beside a server's name, if it does.
fn metadata_ip(server: &[Value]) -> Option<&Value> {
    let is_ip = |name: &Value| matches!(name, Value::BulkString(name) if name == b"ip");
    match server.get(3)? {
        Value::Map(pairs) => pairs.iter().find(|(name, _)| is_ip(name)).map(|(_, ip)| ip),
        Value::Array(list) => list.chunks(2).find(|pair| is_ip(&pair[0]))?.get(1),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_without_a_name_is_found() {
        let text = |text: &str| Value::BulkString(text.as_bytes().to_vec());
        let asked = Address { host: "seed".to_owned(), port: 7000 };
        let beside = || Value::Map(vec![(text("ip"), text("10.0.0.1"))]);
        for (host, expected) in [
            (text("redis-1"), "redis-1"),
            // It does not know it, but its address.
            (text("?"), "10.0.0.1"),
            // It wants to be asked where it was asked, for it may be known there by another address.
            (Value::Nil, "seed"),
            (text(""), "seed"),
        ] {
            let server = Value::Array(vec![host, Value::Int(7001), text("id"), beside()]);
            let row = Value::Array(vec![Value::Int(0), Value::Int(16383), server]);
            let (first, last, address) = read_range(row, &asked).unwrap();
            assert_eq!((first, last, address.port), (0, 16383, 7001));
            assert_eq!(address.host, expected);
        }
    }
}
