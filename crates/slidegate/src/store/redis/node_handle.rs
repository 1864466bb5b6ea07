//! Handle of the task of one server.

use std::sync::Arc;

use tokio::sync::watch;

use super::RedisStore;
use super::skew::Skew;
use crate::error::StoreError;
use crate::store::remote::{QueueSender, task_stopped};

/// State of the connection to a server.
#[derive(Clone, Debug)]
pub(super) enum Health {
    Connecting,
    Up,
    Down(StoreError),
}

/// Handle of a server's task.
#[derive(Clone)]
pub(super) struct NodeHandle {
    pub(super) queue: QueueSender<RedisStore>,
    pub(super) health: watch::Receiver<Health>,
    pub(super) skew: Arc<Skew>,
}

impl NodeHandle {
    /// Waits for the result of the first connection attempt.
    pub(super) async fn ready(&self) -> Result<(), StoreError> {
        let mut health = self.health.clone();
        match health.wait_for(|health| !matches!(health, Health::Connecting)).await.as_deref() {
            Ok(Health::Down(error)) => Err(error.clone()),
            Ok(_) => Ok(()),
            Err(_) => Err(task_stopped::<RedisStore>()),
        }
    }
}
