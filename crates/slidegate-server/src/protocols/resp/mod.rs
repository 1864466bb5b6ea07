//! RESP, the protocol of Redis: `CL.THROTTLE` of the module redis-cell, with `DEL`, `EXISTS` and `TTL` for its keys; `THROTTLE` of
//! throttlecrab; `SLIDEGATE.CHECK` and related commands; and the commands with which clients set up a connection.
//!
//! | module | function |
//! |---|---|
//! | [`connection`] | executes the commands of a connection in batches |
//! | [`frame`], [`inline`] | parse commands |
//! | [`command`], [`check`], [`throttle`], [`quotas`], [`keys`] | commands for the store |
//! | [`forget`] | `SLIDEGATE.FORGET` |
//! | [`session`] | authentication, and commands that need no store |
//! | [`reply`], [`decision_reply`] | encode replies |

mod check;
mod command;
mod connection;
mod decision_reply;
mod forget;
mod frame;
mod grammar;
mod inline;
mod key_reply;
mod keys;
mod quotas;
mod reply;
mod session;
mod throttle;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use slidegate::store::Store;
use slidegate_config::Limits;
use slidegate_engine::{Authenticator, Engine};
use tokio::io::{AsyncRead, AsyncWrite};

use self::connection::Connection;
use crate::net::cork::Cork;
use crate::net::stop::Stop;

/// State that all connections share.
#[derive(Debug, Default)]
pub(crate) struct RespState {
    /// Tokens, which clients send as passwords. `None` if no password is required.
    passwords: Option<Arc<Authenticator>>,
    connections: AtomicU64,
}

impl RespState {
    pub(crate) fn new(passwords: Option<Arc<Authenticator>>) -> Self {
        Self { passwords, ..Self::default() }
    }
}

/// Executes the commands of a connection until it ends, or until `stop` while no command is incomplete.
pub(crate) async fn serve_connection<I, S>(
    stream: I,
    engine: &Engine<S>,
    state: &RespState,
    limits: &Limits,
    stop: Stop,
) -> Result<(), String>
where
    I: AsyncRead + AsyncWrite + Cork + Unpin,
    S: Store,
{
    let id = state.connections.fetch_add(1, Ordering::Relaxed) + 1;
    let connection = Connection::new(stream, engine, state, id, limits);
    connection.run(stop).await.map_err(|error| error.to_string())
}
