//! State that all connections of a store share.

use super::connector::Connector;
use crate::store::remote::RemoteSettings;

/// Connector and settings that the connections of a store share.
pub(super) struct Shared {
    pub(super) connector: Connector,
    pub(super) settings: RemoteSettings,
}
