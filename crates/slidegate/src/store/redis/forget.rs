//! Forgets all keys of a policy: goes through the names of a server and deletes those that begin as the policy's do.
//!
//! `SCAN` returns every name that is there from its first call to its last, so all that was counted when it began is found.
//! It runs on a connection of its own, in steps that each take the server less than a millisecond.

use std::collections::HashSet;
use std::sync::LazyLock;
use std::time::Duration;

use redis::{FromRedisValue, Pipeline, RedisError, Script};
use slidegate_core::Policy;

use super::cluster::{Cluster, Range};
use super::endpoint::{Link, Target};
use super::failure::connect_error;
use super::invalidation;
use super::key;
use super::url::Address;
use super::{RedisStore, Road};
use crate::error::StoreError;

/// How many names the server looks at in one step, and how many of them are deleted in one.
const STEP: usize = 500;
/// How long a server may take for a step.
const STEP_BUDGET: Duration = Duration::from_secs(2);
/// How many times a cluster is gone through while its slots move.
const MAX_PASSES: usize = 10;

static SCRIPT: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("lua/forget.lua")));

impl RedisStore {
    pub(super) async fn forget_policy(&self, policy: &Policy) -> Result<u64, StoreError> {
        let beginning = self.names.beginning(policy);
        let access = &self.shared.access;
        match &self.road {
            Road::One(_) => {
                let link = self.target.connect(access).await?;
                let channel = Some(access.subscriber().channel().to_owned());
                Pass { link, beginning, channel, has_missed: false }.run().await
            }
            Road::Cluster(cluster) => self.forget_on_cluster(cluster, &beginning).await,
        }
    }

    /// A key may move from a server that has not been gone through to one that has been. So there are two passes, and another
    /// one as long as slots have other owners than before.
    async fn forget_on_cluster(&self, cluster: &Cluster, beginning: &[u8]) -> Result<u64, StoreError> {
        let access = &self.shared.access;
        let (mut gone, mut stable_passes) = (0, 0);
        let mut before: Vec<Range> = cluster.ranges_now().await?;
        for _ in 0..MAX_PASSES {
            let owners: HashSet<&Address> = before.iter().map(|(_, _, address)| address).collect();
            let mut has_missed = false;
            for owner in owners {
                let link = Target::At(access.at(owner)).connect(access).await?;
                let mut pass = Pass { link, beginning: beginning.to_vec(), channel: None, has_missed: false };
                gone += pass.run().await?;
                has_missed |= pass.has_missed;
            }
            let after = cluster.ranges_now().await?;
            stable_passes = if after == before && !has_missed { stable_passes + 1 } else { 0 };
            if stable_passes == 2 {
                return Ok(gone);
            }
            before = after;
        }
        let message =
            format!("redis: slots of the cluster moved during each of {MAX_PASSES} passes; try again");
        Err(StoreError::transient(message))
    }
}

/// One way through the names of one server.
struct Pass {
    link: Link,
    /// What the names of the policy begin with.
    beginning: Vec<u8>,
    /// Where others listen; `None` on a cluster, where a script cannot delete keys of several slots.
    channel: Option<String>,
    /// Whether a key moved to another server before it was deleted.
    has_missed: bool,
}

impl Pass {
    async fn run(&mut self) -> Result<u64, StoreError> {
        let (mut cursor, mut gone) = (0, 0);
        let pattern = key::pattern(&self.beginning);
        loop {
            let mut scan = redis::cmd("SCAN");
            scan.arg(cursor).arg("MATCH").arg(&pattern[..]).arg("COUNT").arg(STEP);
            let (next, mut names): (u64, Vec<Vec<u8>>) =
                in_time(&self.link.place, scan.query_async(&mut self.link.connection)).await?;
            names.retain(|name| name.starts_with(&self.beginning));
            for names in names.chunks(STEP) {
                gone += self.delete(names).await?;
            }
            if next == 0 {
                return Ok(gone);
            }
            cursor = next;
        }
    }

    async fn delete(&mut self, names: &[Vec<u8>]) -> Result<u64, StoreError> {
        if let Some(channel) = &self.channel {
            let Link { place, connection, .. } = &mut self.link;
            let mut call = SCRIPT.prepare_invoke();
            for name in names {
                call.key(&name[..]);
            }
            call.arg(channel).arg(invalidation::message(names));
            return in_time(place, call.invoke_async(connection)).await;
        }
        let (gone, refused) = self.delete_each(names, false).await?;
        // A key whose slot is on its way to this server may be here already.
        let (moved, refused) = self.delete_each(&refused, true).await?;
        self.has_missed |= !refused.is_empty();
        Ok(gone + moved)
    }

    /// Deletes keys of any slots. Returns how many there were, and the names that the server would not look at because their
    /// slots are elsewhere.
    async fn delete_each(
        &mut self,
        names: &[Vec<u8>],
        is_asking: bool,
    ) -> Result<(u64, Vec<Vec<u8>>), StoreError> {
        let (mut gone, mut refused) = (0, Vec::new());
        if names.is_empty() {
            return Ok((gone, refused));
        }
        let Link { place, connection, .. } = &mut self.link;
        let mut pipeline = Pipeline::with_capacity(2 * names.len());
        pipeline.ignore_errors();
        for name in names {
            if is_asking {
                pipeline.cmd("ASKING").ignore();
            }
            pipeline.del(&name[..]);
        }
        let replies: Vec<Result<u64, RedisError>> = in_time(place, pipeline.query_async(connection)).await?;
        for (name, reply) in names.iter().zip(replies) {
            match reply {
                Ok(deleted) => gone += deleted,
                Err(error) if matches!(error.code(), Some("MOVED" | "ASK" | "TRYAGAIN")) => {
                    refused.push(name.clone());
                }
                Err(error) => return Err(connect_error(place, &error)),
            }
        }
        Ok((gone, refused))
    }
}

/// A step that takes no longer than it may.
async fn in_time<T: FromRedisValue>(
    place: &str,
    step: impl Future<Output = Result<T, RedisError>>,
) -> Result<T, StoreError> {
    match tokio::time::timeout(STEP_BUDGET, step).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(error)) => Err(connect_error(place, &error)),
        Err(_) => {
            Err(StoreError::transient(format!("redis at {place}: no reply within {STEP_BUDGET:?}"))
                .too_late())
        }
    }
}
