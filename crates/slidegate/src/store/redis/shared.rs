//! Settings of all connections of a store.

use std::sync::Arc;
use std::time::Duration;

use super::connector::Connector;
use crate::clock::Clock;

/// Settings that the connections of a store share.
pub(super) struct Shared {
    pub(super) connector: Connector,
    pub(super) budget: Duration,
    pub(super) max_waiting: usize,
    pub(super) given_time: Option<Arc<dyn Clock>>,
}
