//! Asking sentinels who the primary is.

use redis::Value;

use super::endpoint::{Access, Link};
use super::staggered::first_of;
use super::url::Address;
use crate::error::StoreError;

/// Connects to the primary. A server counts as one only if it says so itself: after a failover a sentinel may
/// still name the one before.
pub(super) async fn connect_primary(
    sentinels: &[Address],
    name: &str,
    sentinel_access: &Access,
    access: &Access,
) -> Result<Link, StoreError> {
    let ask = |sentinel| ask_one(sentinel, name, sentinel_access, access);
    first_of(sentinels.iter().map(ask).collect(), "redis: no sentinel is given").await
}

async fn ask_one(
    sentinel: &Address,
    name: &str,
    sentinel_access: &Access,
    access: &Access,
) -> Result<Link, StoreError> {
    let mut link = sentinel_access.connect(&sentinel_access.at(sentinel)).await?;
    let mut question = redis::cmd("SENTINEL");
    question.arg("GET-MASTER-ADDR-BY-NAME").arg(name);
    let found: Option<(String, u16)> = link.ask(&question, access.budget).await?;
    let Some((host, port)) = found else {
        return Err(StoreError::permanent(format!(
            "the sentinel at {sentinel} knows no primary called {name:?}"
        )));
    };
    let primary = Address { host, port };
    let mut link = access.connect(&access.at(&primary)).await?;
    let role: Vec<Value> = link.ask(&redis::cmd("ROLE"), access.budget).await?;
    match role.first() {
        Some(Value::BulkString(role)) if role == b"master" => Ok(link),
        _ => Err(StoreError::transient(format!(
            "redis at {primary}: the sentinel says primary, it says otherwise"
        ))),
    }
}
