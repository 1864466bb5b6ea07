//! Real servers for tests: started by the test that needs them, gone when it ends, even if it panics or is killed.
//!
//! Nothing here is a mock. What is missing on the machine is installed by `make deps`; what does not start fails
//! the test with the tail of its log.
//!
//! - [`Server`]: one Redis or Valkey, with TLS, a Unix socket, or a wall clock of its own if wanted
//! - [`Replica`], [`Sentinels`], [`Cluster`]: several that belong together
//! - [`Postgres`]: one PostgreSQL, with TLS or a disk that fills up if wanted
//! - [`Standby`], [`PgBouncer`]: what follows it, and what stands in front of it
//! - [`FaultProxy`]: a network that stalls, delays, trickles, refuses, and cuts
//! - [`until`]: waits for what another process has yet to do
//!
//! ```
//! use slidegate_testkit::{Flavour, Server};
//!
//! let server = Server::start(Flavour::Redis);
//! server.command(&["SET", "greeting", "hello"]);
//! assert_eq!(server.command(&["GET", "greeting"]).text(), "hello");
//! ```
#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::missing_panics_doc,
    reason = "a rig that cannot do its work fails the test, and a panic is how"
)]

mod binary;
mod builder;
mod cluster;
mod faketime;
mod port;
mod postgres;
mod process;
mod proxy;
mod replica;
mod resp;
mod sentinels;
mod server;
mod spawner;
mod still;
mod tls;
mod wait;

pub use binary::Flavour;
pub use builder::ServerBuilder;
pub use cluster::Cluster;
pub use faketime::faketime_env;
pub use port::free as free_port;
pub use postgres::{PgBouncer, PgBouncerBuilder, PgSession, Postgres, PostgresBuilder, Rows, Standby};
pub use proxy::FaultProxy;
pub use replica::Replica;
pub use resp::{Connection, Reply};
pub use sentinels::Sentinels;
pub use server::Server;
pub use still::until_still;
pub use tls::{Authority, Tls};
pub use wait::until;
