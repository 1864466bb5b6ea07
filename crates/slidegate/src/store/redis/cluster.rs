//! Cluster: map of the slots to servers, and its refresh when slots move.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Weak};

use arc_swap::ArcSwap;
use redis::Value;
use tokio::sync::{Notify, watch};

use super::RedisStore;
use super::batch::ScriptCall;
use super::endpoint::Endpoint;
use super::node_handle::NodeHandle;
use super::shared::Shared;
use super::staggered_race::first_success;
use super::url::{Address, parse_address};
use crate::clock::{Clock, SystemClock};
use crate::error::StoreError;
use crate::store::backoff::Backoff;
use crate::store::remote::Request;
use crate::store::supervise::supervise;

const SLOTS: usize = 16384;
/// Largest number of redirects of a request.
const MAX_REDIRECTS: u8 = 5;
/// Interval of the refreshes that nothing has triggered.
const REFRESH_INTERVAL_MS: u64 = 30_000;
/// Number of consecutive refreshes for which a server without slots is kept.
const MAX_REFRESHES_WITHOUT_SLOTS: u8 = 10;

/// Servers and their slots, as of the last refresh.
#[derive(Default)]
struct SlotMap {
    /// Each server with the number of consecutive refreshes in which it had no slots. A server that slots are moving to
    /// has none yet.
    nodes: HashMap<Address, (NodeHandle, u8)>,
    /// Sorted by slot.
    ranges: Vec<SlotRange>,
}

/// First slot, last slot, and the server that owns them.
pub(super) type SlotRange = (u16, u16, Address);

impl SlotMap {
    fn owner(&self, slot: u16) -> Option<&NodeHandle> {
        self.nodes.get(self.address(slot)?).map(|(node, _)| node)
    }

    fn address(&self, slot: u16) -> Option<&Address> {
        let index = self.ranges.partition_point(|(_, last, _)| *last < slot);
        let (first, _, address) = self.ranges.get(index)?;
        (*first <= slot).then_some(address)
    }
}

/// Function that starts the task of a server. The task hands calls that its server rejects to the cluster.
type StartNode = fn(Endpoint, Arc<Shared>, Weak<Cluster>) -> NodeHandle;

/// Handle of a cluster.
pub(super) struct Cluster {
    map: ArcSwap<SlotMap>,
    seeds: Vec<Address>,
    shared: Arc<Shared>,
    start_node: StartNode,
    refresh_requested: Arc<Notify>,
    /// Result of the last refresh; `None` before the first.
    last_refresh: watch::Sender<Option<Result<(), StoreError>>>,
    this: Weak<Self>,
}

impl Cluster {
    pub(super) fn start(seeds: Vec<Address>, shared: Arc<Shared>, start_node: StartNode) -> Arc<Self> {
        let cluster = Arc::new_cyclic(|this| Self {
            map: ArcSwap::default(),
            seeds,
            shared,
            start_node,
            refresh_requested: Arc::default(),
            last_refresh: watch::channel(None).0,
            this: Weak::clone(this),
        });
        let this = Arc::downgrade(&cluster);
        supervise("redis cluster task", move || refresh_repeatedly(Weak::clone(&this)));
        cluster
    }

    /// Returns the largest clock skew of any server, by its absolute value.
    pub(super) fn server_ahead_ms(&self) -> Option<i64> {
        let map = self.map.load();
        map.nodes
            .values()
            .filter_map(|(node, _)| node.skew.server_ahead_ms())
            .max_by_key(|ms| ms.unsigned_abs())
    }

    /// Waits for the first refresh, and returns the result of the last one.
    pub(super) async fn ready(&self) -> Result<(), StoreError> {
        let mut last_refresh = self.last_refresh.subscribe();
        match last_refresh.wait_for(Option::is_some).await.as_deref() {
            Ok(Some(result)) => result.clone(),
            _ => Err(StoreError::transient("redis: the task that refreshes the cluster's slots has stopped")),
        }
    }

    /// Waits until each server is connected or unavailable. Requests to an unavailable server fail with its error.
    pub(super) async fn nodes_ready(&self) -> Result<(), StoreError> {
        self.ready().await?;
        for (node, _) in self.map.load_full().nodes.values() {
            let _ = node.ready().await;
        }
        Ok(())
    }

    /// Returns the index of the first of `slots` on each server.
    pub(super) fn first_on_each_node(&self, slots: impl Iterator<Item = u16>) -> Vec<usize> {
        let map = self.map.load_full();
        let mut owners: HashSet<&Address> = map.ranges.iter().map(|(_, _, address)| address).collect();
        let is_first =
            |slot: &(usize, u16)| map.address(slot.1).is_some_and(|address| owners.remove(address));
        slots.enumerate().filter(is_first).map(|(index, _)| index).collect()
    }

    /// Returns the server that owns the slot. Waits for the slot map if needed.
    pub(super) async fn node(&self, slot: u16) -> Result<NodeHandle, StoreError> {
        if let Some(node) = self.map.load().owner(slot) {
            return Ok(node.clone());
        }
        self.ready().await?;
        self.owner(slot)
    }

    /// Returns the address of the server that owns the slot.
    pub(super) async fn address(&self, slot: u16) -> Result<Address, StoreError> {
        self.ready().await?;
        self.map.load().address(slot).cloned().ok_or_else(|| self.no_owner(slot))
    }

    fn owner(&self, slot: u16) -> Result<NodeHandle, StoreError> {
        self.map.load().owner(slot).cloned().ok_or_else(|| self.no_owner(slot))
    }

    fn no_owner(&self, slot: u16) -> StoreError {
        self.refresh();
        StoreError::transient(format!("redis: no server of the cluster has slot {slot}"))
    }

    /// Requests a refresh of the slot map.
    pub(super) fn refresh(&self) {
        self.refresh_requested.notify_one();
    }

    /// Sends a call, which was not executed, to the address that the server `replying_host` returned.
    pub(super) fn redirect(&self, call: ScriptCall, address: &str, replying_host: &str) {
        if !call.is_importing() {
            self.refresh();
        }
        // An address without a host means another port of the same host.
        let full = match address.strip_prefix("?:").or(address.strip_prefix(':')) {
            Some(port) if replying_host.contains(':') => format!("[{replying_host}]:{port}"),
            Some(port) => format!("{replying_host}:{port}"),
            None => address.to_owned(),
        };
        let node = parse_address(&full, 6379).ok().map(|address| self.node_at(&address));
        forward(call, |_| {
            node.clone().ok_or_else(|| {
                StoreError::transient(format!(
                    "redis: redirected to {address:?}, which is not a valid address"
                ))
            })
        });
    }

    /// Sends a call, which was not executed, again.
    pub(super) fn resend(&self, call: ScriptCall) {
        forward(call, |request| self.owner(request.operation.slot));
    }

    /// Returns the server at an address; starts its task if the server is new.
    fn node_at(&self, address: &Address) -> NodeHandle {
        if let Some((node, _)) = self.map.load().nodes.get(address) {
            return node.clone();
        }
        let node = self.start_node(address);
        self.map.rcu(|map| {
            let mut nodes = map.nodes.clone();
            nodes.entry(address.clone()).or_insert_with(|| (node.clone(), 0));
            SlotMap { nodes, ranges: map.ranges.clone() }
        });
        self.map.load().nodes.get(address).map_or(node, |(node, _)| node.clone())
    }

    fn start_node(&self, address: &Address) -> NodeHandle {
        let endpoint = Endpoint::Fixed(self.shared.connector.address(address));
        (self.start_node)(endpoint, Arc::clone(&self.shared), Weak::clone(&self.this))
    }

    /// Updates the slot map from the first server that replies. Returns whether the ranges changed.
    async fn update(&self) -> Result<bool, StoreError> {
        let map = self.map.load_full();
        let addresses = map.nodes.keys().chain(&self.seeds);
        let attempts = addresses.map(|address| self.fetch_ranges(address)).collect();
        let ranges = first_success(attempts, "redis: no server of the cluster is known").await?;
        Ok(self.set_ranges(&ranges))
    }

    /// Updates the slot map and returns its ranges.
    pub(super) async fn current_ranges(&self) -> Result<Vec<SlotRange>, StoreError> {
        self.update().await?;
        Ok(self.map.load().ranges.clone())
    }

    async fn fetch_ranges(&self, address: &Address) -> Result<Vec<SlotRange>, StoreError> {
        let connector = &self.shared.connector;
        let mut link = connector.connect(&connector.address(address)).await?;
        let mut command = redis::cmd("CLUSTER");
        command.arg("SLOTS");
        let ranges = parse_ranges(link.query(&command, connector.budget).await?, address);
        if ranges.is_empty() {
            return Err(StoreError::transient(format!(
                "redis at {address}: no slots are assigned to a server"
            )));
        }
        Ok(ranges)
    }

    /// Replaces the ranges. Keeps the connections of the servers that have slots, or had some recently. Returns whether
    /// the ranges changed.
    fn set_ranges(&self, ranges: &[SlotRange]) -> bool {
        let is_changed = self.map.load().ranges != ranges;
        let mut started: HashMap<Address, NodeHandle> = HashMap::new();
        self.map.rcu(|old| {
            let mut nodes: HashMap<_, _> = old
                .nodes
                .iter()
                .map(|(address, (node, refreshes))| {
                    (address.clone(), (node.clone(), refreshes.saturating_add(1)))
                })
                .collect();
            for (_, _, address) in ranges {
                let mut start =
                    || started.entry(address.clone()).or_insert_with(|| self.start_node(address)).clone();
                nodes.entry(address.clone()).or_insert_with(|| (start(), 0)).1 = 0;
            }
            nodes.retain(|_, (_, refreshes)| *refreshes <= MAX_REFRESHES_WITHOUT_SLOTS);
            SlotMap { nodes, ranges: ranges.to_vec() }
        });
        is_changed
    }
}

/// Sends the requests of a call to `node`, as one group, because several of them may have the same key.
fn forward(call: ScriptCall, node: impl FnOnce(&Request<RedisStore>) -> Result<NodeHandle, StoreError>) {
    let mut forwarded = Vec::with_capacity(call.requests.len());
    for mut request in call.requests {
        request.operation.redirects += 1;
        if request.operation.redirects > MAX_REDIRECTS {
            let error = format!(
                "redis: slot {} was redirected {MAX_REDIRECTS} times in a row",
                request.operation.slot
            );
            request.respond(Err(StoreError::transient(error)));
        } else {
            forwarded.push(request);
        }
    }
    let Some(first) = forwarded.first() else { return };
    match node(first) {
        Ok(node) => node.queue.try_send_group(forwarded),
        Err(error) => Request::fail_all(forwarded, &error),
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // Wakes the refresh task, which then ends.
        self.refresh_requested.notify_one();
    }
}

/// Refreshes the slot map on request and at intervals, until the cluster is dropped.
async fn refresh_repeatedly(this: Weak<Cluster>) {
    let clock = SystemClock::default();
    let mut backoff = Backoff::default();
    loop {
        let Some(cluster) = this.upgrade() else { return };
        let result = cluster.update().await;
        let pause_ms = match &result {
            Ok(true) => {
                backoff = Backoff::default();
                backoff.next_ms()
            }
            // A refresh was requested, but the ranges are unchanged: the servers do not agree on the new owner yet.
            Ok(false) => backoff.next_ms(),
            Err(error) => {
                tracing::warn!(%error, "cannot refresh the slots of the redis cluster; trying again");
                backoff.next_ms()
            }
        };
        let is_success = result.is_ok();
        cluster.last_refresh.send_replace(Some(result.map(|_| ())));
        let refresh_requested = Arc::clone(&cluster.refresh_requested);
        // A strong reference held across the wait would keep the cluster alive.
        drop(cluster);
        clock.sleep(pause_ms).await;
        if is_success {
            tokio::select! {
                () = refresh_requested.notified() => {}
                () = clock.sleep(REFRESH_INTERVAL_MS) => {}
            }
        }
    }
}

/// Parses the reply to `CLUSTER SLOTS`: per range the first slot, the last slot, the primary and its replicas.
fn parse_ranges(rows: Vec<Value>, queried: &Address) -> Vec<SlotRange> {
    let mut ranges: Vec<_> = rows.into_iter().filter_map(|row| parse_range(row, queried)).collect();
    ranges.sort_unstable_by_key(|(first, _, _)| *first);
    ranges
}

fn parse_range(row: Value, queried: &Address) -> Option<SlotRange> {
    let Value::Array(row) = row else { return None };
    let [Value::Int(first), Value::Int(last), Value::Array(primary), ..] = row.as_slice() else {
        return None;
    };
    let [host, Value::Int(port), ..] = primary.as_slice() else { return None };
    let text = |host: &Value| match host {
        Value::BulkString(host) => String::from_utf8(host.clone()).ok().filter(|host| !host.is_empty()),
        _ => None,
    };
    // "?" is the host of a server that does not know its own; the metadata may contain its IP address. An empty host means
    // the host that the command was sent to.
    let host = match text(host) {
        Some(host) if host == "?" => metadata_ip(primary).and_then(text),
        host => host,
    };
    let host = host.unwrap_or_else(|| queried.host.clone());
    let slot = |slot: &i64| u16::try_from(*slot).ok().filter(|slot| usize::from(*slot) < SLOTS);
    Some((slot(first)?, slot(last)?, Address { host, port: u16::try_from(*port).ok()? }))
}

/// Returns the IP address from a server's metadata.
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
    fn an_unknown_host_is_replaced_by_metadata_or_the_queried_host() {
        let text = |text: &str| Value::BulkString(text.as_bytes().to_vec());
        let queried = Address { host: "seed".to_owned(), port: 7000 };
        let metadata = || Value::Map(vec![(text("ip"), text("10.0.0.1"))]);
        for (host, expected) in [
            (text("redis-1"), "redis-1"),
            // The metadata contains the IP address.
            (text("?"), "10.0.0.1"),
            // No host: the queried host, even if the metadata has an IP address.
            (Value::Nil, "seed"),
            (text(""), "seed"),
        ] {
            let server = Value::Array(vec![host, Value::Int(7001), text("id"), metadata()]);
            let row = Value::Array(vec![Value::Int(0), Value::Int(16383), server]);
            let (first, last, address) = parse_range(row, &queried).unwrap();
            assert_eq!((first, last, address.port), (0, 16383, 7001));
            assert_eq!(address.host, expected);
        }
    }
}
