//! Task of one server: keeps a connection to it for the batcher.

use std::sync::{Arc, Weak};

use tokio::sync::{Mutex, watch};

use super::RedisStore;
use super::batcher::{Batcher, Disconnect, HandlesDropped, InFlight};
use super::cluster::Cluster;
use super::connector::Link;
use super::endpoint::Endpoint;
use super::exchange::{Peer, measure_skew};
use super::node_handle::{Health, NodeHandle};
use super::outage::Outage;
use super::shared::Shared;
use super::skew::Skew;
use crate::clock::{Clock, SystemClock};
use crate::error::StoreError;
use crate::store::remote::{QueueReceiver, queue, task_stopped};
use crate::store::supervise::supervise;

/// Starts the task of a server. It ends when all handles are dropped.
pub(super) fn start(endpoint: Endpoint, shared: Arc<Shared>, cluster: Weak<Cluster>) -> NodeHandle {
    let (sender, queue) = queue(shared.settings.max_waiting);
    let (health, watched) = watch::channel(Health::Connecting);
    let skew = Arc::new(Skew::default());
    let is_named_by_sentinel = matches!(endpoint, Endpoint::Primary { .. });
    let peer = Peer { cluster, host: endpoint.host(), is_named_by_sentinel, skew: Arc::clone(&skew) };
    let node =
        Arc::new(Mutex::new(Node { queue, endpoint, shared, peer, health, outage: Outage::default() }));
    supervise("redis connection task", move || {
        let node = Arc::clone(&node);
        async move { node.lock().await.run().await }
    });
    NodeHandle { queue: sender, health: watched, skew }
}

struct Node {
    queue: QueueReceiver<RedisStore>,
    endpoint: Endpoint,
    shared: Arc<Shared>,
    peer: Peer,
    health: watch::Sender<Health>,
    outage: Outage,
}

impl Node {
    async fn run(&mut self) {
        loop {
            let disconnect = match self.connect().await {
                Ok(Ok(link)) => {
                    self.health.send_replace(Health::Up);
                    let Self { queue, shared, peer, outage, .. } = self;
                    Batcher { queue, shared, peer, outage, link, in_flight: InFlight::default() }.run().await
                }
                Ok(Err(error)) => Ok(Disconnect::Unusable(error)),
                Err(HandlesDropped) => return,
            };
            let paused = match disconnect {
                Ok(Disconnect::Closed) => Ok(()),
                Ok(Disconnect::Unusable(error)) => self.pause(error).await,
                Err(HandlesDropped) => return,
            };
            if paused.is_err() {
                return;
            }
        }
    }

    /// Waits before the next connection attempt. Requests are rejected with `error` meanwhile.
    async fn pause(&mut self, error: StoreError) -> Result<(), HandlesDropped> {
        let pause_ms = self.outage.record(&error);
        self.health.send_replace(Health::Down(error));
        if let Some(cluster) = self.peer.cluster.upgrade() {
            cluster.refresh();
        }
        self.reject_until(SystemClock::default().sleep(pause_ms)).await
    }

    /// Connects. After a connection that worked, requests stay in the queue meanwhile. After a failed attempt they are
    /// rejected at once.
    async fn connect(&mut self) -> Result<Result<Link, StoreError>, HandlesDropped> {
        let (endpoint, shared) = (self.endpoint.clone(), Arc::clone(&self.shared));
        let skew = Arc::clone(&self.peer.skew);
        let attempt = async move {
            let mut link = endpoint.connect(&shared.connector).await?;
            measure_skew(&mut link, &shared, &skew).await?;
            Ok(link)
        };
        if matches!(*self.health.borrow(), Health::Down(_)) {
            self.reject_until(attempt).await
        } else {
            Ok(attempt.await)
        }
    }

    /// Rejects requests with the error of the outage until `done` completes.
    async fn reject_until<T>(&mut self, done: impl Future<Output = T>) -> Result<T, HandlesDropped> {
        let mut done = std::pin::pin!(done);
        loop {
            tokio::select! {
                biased;
                result = &mut done => return Ok(result),
                entry = self.queue.recv() => {
                    let Some(entry) = entry else { return Err(HandlesDropped) };
                    match &*self.health.borrow() {
                        Health::Down(error) => entry.reject(error),
                        _ => entry.reject(&task_stopped::<RedisStore>()),
                    }
                }
            }
        }
    }
}
