//! Real servers for tests. A test starts the servers that it needs; they end with the test, even if it panics or is
//! killed.
//!
//! There are no mocks. `make deps` installs missing servers. A server that does not start fails the test with the tail
//! of its log.
//!
//! - [`Server`]: one Redis or Valkey, optionally with TLS, a Unix socket or a shifted wall clock
//! - [`Replica`], [`Sentinels`], [`Cluster`]: groups of such servers
//! - [`Postgres`]: one PostgreSQL, optionally with TLS or a small disk
//! - [`Standby`], [`PgBouncer`]: a replica of it, and a connection pool in front of it
//! - [`FaultProxy`]: a network that stalls, delays, trickles, and closes connections
//! - [`until`]: waits for a condition of another process
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
    reason = "a rig that cannot work fails its test by a panic"
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
mod stopped;
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
pub use stopped::until_stopped;
pub use tls::{Authority, Tls};
pub use wait::until;
