//! PostgreSQL, what follows it, and what stands in front of it.

mod binary;
mod builder;
mod disk;
mod family;
mod folder;
mod pgbouncer;
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
