//! RESP, the protocol of Redis: `CL.THROTTLE` as the module redis-cell has it, `SLIDEGATE.CHECK` and its relatives, and
//! what clients say before they get to the point.
//!
//! [`frame`] finds a command in what was read, [`command`] says what it means, [`session`] answers what needs no store,
//! [`connection`] puts them together, [`wire`] reads and writes.

mod command;
mod connection;
mod decided;
mod frame;
mod inline;
mod reply;
mod session;
mod throttle;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use slidegate::Store;
use tokio::io::{AsyncRead, AsyncWrite};

use self::connection::Connection;
use self::throttle::Throttles;
use crate::app::App;
use crate::serve::Limits;
use crate::serve::stop::Stop;

/// What all connections have in common.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    passwords: Option<Passwords>,
    throttles: Throttles,
    connections: AtomicU64,
}

/// Who may ask: says whether a password is one of those that are let in.
#[derive(Clone)]
pub struct Passwords(Arc<dyn Fn(&str) -> bool + Send + Sync>);

impl Passwords {
    /// Those for which `is_valid`.
    pub fn new(is_valid: impl Fn(&str) -> bool + Send + Sync + 'static) -> Self {
        Self(Arc::new(is_valid))
    }

    fn admit(&self, password: &[u8]) -> bool {
        str::from_utf8(password).is_ok_and(|password| (self.0)(password))
    }
}

impl fmt::Debug for Passwords {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Passwords")
    }
}

impl Shared {
    pub(crate) fn new(passwords: Option<Passwords>) -> Self {
        Self { passwords, ..Self::default() }
    }
}

/// Commands and answers on one connection, until it ends or there is a `stop` and nothing has begun.
pub(crate) async fn converse<I, S>(
    stream: I,
    app: &App<S>,
    shared: &Shared,
    limits: &Limits,
    stop: Stop,
) -> Result<(), String>
where
    I: AsyncRead + AsyncWrite + Unpin,
    S: Store,
{
    let number = shared.connections.fetch_add(1, Ordering::Relaxed) + 1;
    let connection = Connection::new(stream, app, shared, number, limits);
    connection.run(stop).await.map_err(|error| error.to_string())
}
