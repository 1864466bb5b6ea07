//! PostgreSQL, what follows it, and what stands in front of it.

mod binary;
mod builder;
mod disk;
mod family;
mod folder;
mod server;
mod session;
mod template;
mod user;

pub use builder::PostgresBuilder;
pub use server::Postgres;
pub use session::{PgSession, Rows};
