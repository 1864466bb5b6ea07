//! The service: `slidegate serve`, `check` and `validate`.
//!
//! A library only so that tests can start the server in their own process, on a clock of their own. Protocols
//! decode a [`Request`], call [`App`], and encode what it says.

mod answer;
mod app;
pub mod command;
pub mod config;
pub mod http;
mod policies;
mod quota_spec;
mod reload;
mod request;
mod serve;
mod served;
mod store;
mod whole;

pub use answer::Answer;
pub use app::{App, Decided};
pub use policies::Policies;
pub use request::{Batch, Refusal, RefusalKind, Request};
pub use serve::{Door, Limits, Tls, TlsFiles, run};
pub use served::{Served, Switched};
pub use store::AnyStore;
