//! Discovery of the primary through Redis Sentinel.

use redis::Value;

use super::connector::{Connector, Link};
use super::staggered_race::first_success;
use super::url::Address;
use crate::error::StoreError;

/// Connects to the primary. The server has to confirm its role: after a failover a sentinel may still name the previous
/// primary.
pub(super) async fn connect_primary(
    sentinels: &[Address],
    name: &str,
    sentinel_connector: &Connector,
    connector: &Connector,
) -> Result<Link, StoreError> {
    let attempt = |sentinel| connect_via(sentinel, name, sentinel_connector, connector);
    first_success(sentinels.iter().map(attempt).collect(), "redis: the URL names no sentinel").await
}

async fn connect_via(
    sentinel: &Address,
    name: &str,
    sentinel_connector: &Connector,
    connector: &Connector,
) -> Result<Link, StoreError> {
    let mut link = sentinel_connector.connect(&sentinel_connector.address(sentinel)).await?;
    let mut command = redis::cmd("SENTINEL");
    command.arg("GET-MASTER-ADDR-BY-NAME").arg(name);
    let found: Option<(String, u16)> = link.query(&command, connector.budget).await?;
    let Some((host, port)) = found else {
        return Err(StoreError::permanent(format!(
            "the sentinel at {sentinel} knows no primary called {name:?}"
        )));
    };
    let primary = Address { host, port };
    let mut link = connector.connect(&connector.address(&primary)).await?;
    let role: Vec<Value> = link.query(&redis::cmd("ROLE"), connector.budget).await?;
    match role.first() {
        Some(Value::BulkString(role)) if role == b"master" => Ok(link),
        _ => Err(StoreError::transient(format!(
            "redis at {primary}: the sentinel names it as the primary, but its role is another one"
        ))),
    }
}
