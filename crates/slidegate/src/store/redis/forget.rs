//! Removal of all keys of a policy: scans the keys of a server and deletes those with the policy's prefix.
//!
//! `SCAN` returns every key that exists from its first call to its last, so it finds all keys that were counted before it
//! began. It runs on a connection of its own, in steps that each take the server less than a millisecond.

use std::collections::HashSet;
use std::sync::LazyLock;
use std::time::Duration;

use redis::{FromRedisValue, Pipeline, RedisError, Script};
use slidegate_core::Policy;

use super::cluster::{Cluster, SlotRange};
use super::connector::Link;
use super::endpoint::Endpoint;
use super::failure::connect_error;
use super::invalidation;
use super::key;
use super::url::Address;
use super::{RedisStore, Route};
use crate::error::StoreError;

/// Number of keys that a step scans, and that a step deletes at most.
const STEP: usize = 500;
/// Timeout of a step.
const STEP_BUDGET: Duration = Duration::from_secs(2);
/// Largest number of passes over a cluster whose slots move.
const MAX_PASSES: usize = 10;

static SCRIPT: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("lua/forget.lua")));

impl RedisStore {
    pub(super) async fn forget_policy(&self, policy: &Policy) -> Result<u64, StoreError> {
        let prefix = self.names.prefix_of(policy);
        let connector = &self.shared.connector;
        match &self.route {
            Route::Single(_) => {
                let link = self.endpoint.connect(connector).await?;
                let channel = Some(connector.subscriber().channel().to_owned());
                Pass { link, prefix, channel, has_missed: false }.run().await
            }
            Route::Cluster(cluster) => self.forget_on_cluster(cluster, &prefix).await,
        }
    }

    /// Deletes the keys on all servers of a cluster. A key may move to a server that has been scanned already, so the
    /// passes repeat until the owners of the slots were the same during two of them in a row.
    async fn forget_on_cluster(&self, cluster: &Cluster, prefix: &[u8]) -> Result<u64, StoreError> {
        let connector = &self.shared.connector;
        let (mut deleted, mut stable_passes) = (0, 0);
        let mut before: Vec<SlotRange> = cluster.current_ranges().await?;
        for _ in 0..MAX_PASSES {
            let owners: HashSet<&Address> = before.iter().map(|(_, _, address)| address).collect();
            let mut has_missed = false;
            for owner in owners {
                let link = Endpoint::Fixed(connector.address(owner)).connect(connector).await?;
                let mut pass = Pass { link, prefix: prefix.to_vec(), channel: None, has_missed: false };
                deleted += pass.run().await?;
                has_missed |= pass.has_missed;
            }
            let after = cluster.current_ranges().await?;
            stable_passes = if after == before && !has_missed { stable_passes + 1 } else { 0 };
            if stable_passes == 2 {
                return Ok(deleted);
            }
            before = after;
        }
        let message =
            format!("redis: slots of the cluster moved during each of {MAX_PASSES} passes; try again");
        Err(StoreError::transient(message))
    }
}

/// One scan of one server.
struct Pass {
    link: Link,
    /// Prefix of the policy's keys.
    prefix: Vec<u8>,
    /// Channel of the invalidations; `None` on a cluster, where a script cannot delete keys of several slots.
    channel: Option<String>,
    /// Whether a key moved to another server before it was deleted.
    has_missed: bool,
}

impl Pass {
    async fn run(&mut self) -> Result<u64, StoreError> {
        let (mut cursor, mut deleted) = (0, 0);
        let pattern = key::pattern(&self.prefix);
        loop {
            let mut scan = redis::cmd("SCAN");
            scan.arg(cursor).arg("MATCH").arg(&pattern[..]).arg("COUNT").arg(STEP);
            let (next, mut names): (u64, Vec<Vec<u8>>) =
                in_time(&self.link.server, scan.query_async(&mut self.link.connection)).await?;
            names.retain(|name| name.starts_with(&self.prefix));
            for names in names.chunks(STEP) {
                deleted += self.delete(names).await?;
            }
            if next == 0 {
                return Ok(deleted);
            }
            cursor = next;
        }
    }

    async fn delete(&mut self, names: &[Vec<u8>]) -> Result<u64, StoreError> {
        if let Some(channel) = &self.channel {
            let Link { server, connection, .. } = &mut self.link;
            let mut call = SCRIPT.prepare_invoke();
            for name in names {
                call.key(&name[..]);
            }
            call.arg(channel).arg(invalidation::message(names));
            return in_time(server, call.invoke_async(connection)).await;
        }
        let (deleted, redirected) = self.delete_each(names, false).await?;
        // The server may be importing the slot, and have the key already.
        let (imported, redirected) = self.delete_each(&redirected, true).await?;
        self.has_missed |= !redirected.is_empty();
        Ok(deleted + imported)
    }

    /// Deletes keys of any slots. Returns the number of deleted keys, and the names that the server redirected.
    async fn delete_each(
        &mut self,
        names: &[Vec<u8>],
        is_importing: bool,
    ) -> Result<(u64, Vec<Vec<u8>>), StoreError> {
        let (mut deleted, mut redirected) = (0, Vec::new());
        if names.is_empty() {
            return Ok((deleted, redirected));
        }
        let Link { server, connection, .. } = &mut self.link;
        let mut pipeline = Pipeline::with_capacity(2 * names.len());
        pipeline.ignore_errors();
        for name in names {
            if is_importing {
                pipeline.cmd("ASKING").ignore();
            }
            pipeline.del(&name[..]);
        }
        let replies: Vec<Result<u64, RedisError>> = in_time(server, pipeline.query_async(connection)).await?;
        for (name, reply) in names.iter().zip(replies) {
            match reply {
                Ok(count) => deleted += count,
                Err(error) if matches!(error.code(), Some("MOVED" | "ASK" | "TRYAGAIN")) => {
                    redirected.push(name.clone());
                }
                Err(error) => return Err(connect_error(server, &error)),
            }
        }
        Ok((deleted, redirected))
    }
}

/// Runs a step, within its timeout.
async fn in_time<T: FromRedisValue>(
    server: &str,
    step: impl Future<Output = Result<T, RedisError>>,
) -> Result<T, StoreError> {
    match tokio::time::timeout(STEP_BUDGET, step).await {
        Ok(Ok(reply)) => Ok(reply),
        Ok(Err(error)) => Err(connect_error(server, &error)),
        Err(_) => {
            Err(StoreError::transient(format!("redis at {server}: no reply within {STEP_BUDGET:?}"))
                .too_late())
        }
    }
}
