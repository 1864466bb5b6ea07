//! PostgreSQL servers, their standbys and PgBouncer.

mod binary;
mod builder;
mod disk;
mod folder;
mod pgbouncer;
mod processes;
mod server;
mod session;
mod standby;
mod template;
mod user;

pub use builder::PostgresBuilder;
pub use pgbouncer::{PgBouncer, PgBouncerBuilder};
pub use server::Postgres;
pub use session::{PgSession, Rows};
pub use standby::Standby;
