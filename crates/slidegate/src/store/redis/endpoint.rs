//! Server to connect to: a fixed address, or the primary that sentinels name.

use redis::ConnectionAddr;

use super::connector::{Connector, Link};
use super::sentinel::connect_primary;
use super::settings::RedisStoreBuilder;
use super::url::{Address, Topology};
use crate::error::StoreError;

/// Server to connect to.
#[derive(Clone)]
pub(super) enum Endpoint {
    /// Fixed address or Unix socket.
    Fixed(ConnectionAddr),
    /// Primary that the sentinels name.
    Primary { sentinels: Vec<Address>, name: String, sentinel_connector: Connector },
}

impl Endpoint {
    pub(super) fn new(builder: &RedisStoreBuilder, connector: &Connector) -> Self {
        match &builder.url.topology {
            Topology::Unix(path) => Self::Fixed(ConnectionAddr::Unix(path.clone())),
            Topology::Sentinel { name } => Self::Primary {
                sentinels: builder.url.hosts.clone(),
                name: name.clone(),
                sentinel_connector: Connector::for_sentinels(builder),
            },
            Topology::One | Topology::Cluster => Self::Fixed(connector.address(&builder.url.hosts[0])),
        }
    }

    /// Returns the host; empty for a socket or a primary behind sentinels.
    pub(super) fn host(&self) -> String {
        match self {
            Self::Fixed(ConnectionAddr::Tcp(host, _) | ConnectionAddr::TcpTls { host, .. }) => host.clone(),
            _ => String::new(),
        }
    }

    pub(super) async fn connect(&self, connector: &Connector) -> Result<Link, StoreError> {
        match self {
            Self::Fixed(address) => connector.connect(address).await,
            Self::Primary { sentinels, name, sentinel_connector } => {
                connect_primary(sentinels, name, sentinel_connector, connector).await
            }
        }
    }
}
