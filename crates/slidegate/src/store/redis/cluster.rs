//! A cluster: which server has which slot, and what to do when it no longer has.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use arc_swap::ArcSwap;
use redis::Value;
use tokio::sync::{Notify, watch};

use super::backoff::Backoff;
use super::call::{Call, Request};
use super::endpoint::Target;
use super::node::{self, NodeHandle, Shared};
use super::url::{Address, parse_address};
use crate::clock::{Clock, SystemClock};
use crate::error::StoreError;

const SLOTS: usize = 16384;
/// More often than this nobody is sent elsewhere.
const MAX_HOPS: u8 = 5;
/// Even if nobody complains.
const REFRESH_EVERY_MS: u64 = 30_000;
/// However many complain.
const REFRESH_AT_MOST_EVERY_MS: u64 = 20;

/// The servers and their slots, as last heard.
#[derive(Default)]
struct Map {
    nodes: HashMap<Address, NodeHandle>,
    /// From the first slot on, by ranges in order.
    ranges: Vec<(u16, u16, Address)>,
}

impl Map {
    fn owner(&self, slot: u16) -> Option<&NodeHandle> {
        let index = self.ranges.partition_point(|(_, last, _)| *last < slot);
        let (first, _, address) = self.ranges.get(index)?;
        if *first <= slot { self.nodes.get(address) } else { None }
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
        tokio::spawn(keep_refreshed(Arc::downgrade(&cluster)));
        cluster
    }

    /// Waits until the slots are known, or cannot be.
    pub(super) async fn ready(&self) -> Result<(), StoreError> {
        let mut known = self.known.subscribe();
        match known.wait_for(Option::is_some).await.as_deref() {
            Ok(Some(result)) => result.clone(),
            _ => Err(StoreError::transient("redis: the cluster's task is gone")),
        }
    }

    /// The server that has the slot, or why nobody does.
    pub(super) async fn node(&self, slot: u16) -> Result<NodeHandle, StoreError> {
        if let Some(node) = self.map.load().owner(slot) {
            return Ok(node.clone());
        }
        self.ready().await?;
        self.owner(slot)
    }

    fn owner(&self, slot: u16) -> Result<NodeHandle, StoreError> {
        self.map.load().owner(slot).cloned().ok_or_else(|| {
            self.refresh();
            StoreError::transient(format!("redis: no server of the cluster has slot {slot}"))
        })
    }

    /// Somebody saw that the map is wrong.
    pub(super) fn refresh(&self) {
        self.complaints.notify_one();
    }

    /// Sends a call, which was not executed, to the server that was named.
    pub(super) fn redirect(&self, call: Call, address: &str) {
        let is_asking = call.is_asking();
        if !is_asking {
            self.refresh();
        }
        let node = parse_address(address, 6379).ok().map(|address| self.node_at(&address));
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
        if let Some(node) = self.map.load().nodes.get(address) {
            return node.clone();
        }
        let node = self.start_node(address);
        self.map.rcu(|map| {
            let mut nodes = map.nodes.clone();
            nodes.entry(address.clone()).or_insert_with(|| node.clone());
            Map { nodes, ranges: map.ranges.clone() }
        });
        self.map.load().nodes.get(address).cloned().unwrap_or(node)
    }

    fn start_node(&self, address: &Address) -> NodeHandle {
        let target = Target::At(self.shared.access.at(address));
        node::start(target, Arc::clone(&self.shared), Weak::clone(&self.this))
    }

    /// Learns the slots from whoever answers first.
    async fn learn(&self) -> Result<(), StoreError> {
        let map = self.map.load_full();
        let mut last = StoreError::transient("redis: no server of the cluster is known");
        for address in map.nodes.keys().chain(&self.seeds) {
            match self.ask(address).await {
                Ok(ranges) if !ranges.is_empty() => {
                    self.adopt(ranges);
                    return Ok(());
                }
                Ok(_) => last = StoreError::transient(format!("redis at {address}: it knows of no slots")),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    async fn ask(&self, address: &Address) -> Result<Vec<(u16, u16, Address)>, StoreError> {
        let access = &self.shared.access;
        let mut link = access.connect(&access.at(address)).await?;
        let mut question = redis::cmd("CLUSTER");
        question.arg("SLOTS");
        let asked = question.query_async::<Vec<Value>>(&mut link.connection);
        match tokio::time::timeout(self.shared.budget.max(std::time::Duration::from_secs(1)), asked).await {
            Ok(Ok(rows)) => Ok(read_ranges(rows, address)),
            Ok(Err(error)) => Err(super::failure::connect_error(&address.to_string(), &error)),
            Err(_) => Err(StoreError::transient(format!("redis at {address}: no answer"))),
        }
    }

    /// Keeps the servers that still have slots, with their connections.
    fn adopt(&self, ranges: Vec<(u16, u16, Address)>) {
        let old = self.map.load_full();
        let mut nodes = HashMap::new();
        for (_, _, address) in &ranges {
            let known = || old.nodes.get(address).cloned();
            nodes
                .entry(address.clone())
                .or_insert_with(|| known().unwrap_or_else(|| self.start_node(address)));
        }
        self.map.store(Arc::new(Map { nodes, ranges }));
    }
}

/// Sends the requests of a call to those who have their slots now.
fn pass_on(call: Call, node: impl Fn(&Request) -> Result<NodeHandle, StoreError>) {
    for mut request in call.requests {
        request.hops += 1;
        if request.hops > MAX_HOPS {
            let error = format!("redis: slot {} was moved {MAX_HOPS} times in a row", request.slot);
            request.answer(Err(StoreError::transient(error)));
            continue;
        }
        match node(&request) {
            Ok(node) => node.send_now(request),
            Err(error) => request.answer(Err(error)),
        }
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
            Ok(()) => {
                backoff = Backoff::default();
                REFRESH_AT_MOST_EVERY_MS
            }
            Err(error) => {
                tracing::warn!(%error, "cannot learn the slots of the redis cluster");
                backoff.next_ms()
            }
        };
        let is_known = learned.is_ok();
        cluster.known.send_replace(Some(learned));
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
fn read_ranges(rows: Vec<Value>, asked: &Address) -> Vec<(u16, u16, Address)> {
    let mut ranges: Vec<_> = rows.into_iter().filter_map(|row| read_range(row, asked)).collect();
    ranges.sort_unstable_by_key(|(first, _, _)| *first);
    ranges
}

fn read_range(row: Value, asked: &Address) -> Option<(u16, u16, Address)> {
    let Value::Array(row) = row else { return None };
    let [Value::Int(first), Value::Int(last), Value::Array(primary), ..] = row.as_slice() else {
        return None;
    };
    let [host, Value::Int(port), ..] = primary.as_slice() else { return None };
    let host = match host {
        Value::BulkString(host) if !host.is_empty() => String::from_utf8(host.clone()).ok()?,
        // A server that does not know its own address is at the one where it was asked.
        _ => asked.host.clone(),
    };
    let slot = |slot: &i64| u16::try_from(*slot).ok().filter(|slot| usize::from(*slot) < SLOTS);
    Some((slot(first)?, slot(last)?, Address { host, port: u16::try_from(*port).ok()? }))
}
