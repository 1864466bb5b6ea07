//! The service: `slidegate serve`, `check` and `validate`.
//!
//! A library only so that tests can start the server in their own process, on a clock of their own. Protocols
//! decode a [`Request`], call [`App`], and encode what it says.

mod admin;
mod answer;
mod app;
mod changes;
pub mod command;
pub mod config;
mod environment;
mod envoy;
mod explain;
mod heavy_hitters;
mod http;
mod key_rule;
mod metrics;
mod once;
mod policies;
mod quota_spec;
mod reload;
mod report;
mod request;
mod resp;
pub mod rls;
mod serve;
mod served;
mod signals;
mod spelled;
mod stopwatch;
mod store;
mod tally;
mod throttle;
mod timer;
mod tokens;
mod traces;
mod violations;
mod whole;

pub use answer::Answer;
pub use app::{App, Decided};
pub use key_rule::{KeyPart, KeyRule};
pub use metrics::Metrics;
pub use policies::{Override, Policies, PolicyEntry};
pub use report::{MemoryReport, Report, Reporting};
pub use request::{Batch, Refusal, RefusalKind, Request};
pub use serve::{Door, Entrance, Limits, Tls, TlsFiles, run};
pub use served::{Served, Switched};
pub use store::AnyStore;
pub use tokens::{Authenticator, Scope, Token, Tokens, Verbs};
pub use violations::ViolationLog;
