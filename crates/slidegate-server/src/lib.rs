//! The service: `slidegate serve`, `check` and `validate`.
//!
//! A library only so that tests can start the server in their own process, on a clock of their own. Protocols
//! decode a [`Request`], call [`App`], and encode what it says.

mod app;
mod bounded_integer;
mod changes;
pub mod cli;
pub mod config;
mod decision_counts;
mod decision_json;
mod environment;
mod envoy;
mod explain;
mod heavy_hitters;
mod json_fragments;
mod key_rule;
mod log_once;
mod metrics;
mod net;
mod policies;
mod policy_metrics;
mod protocols;
mod quota_spec;
mod reload;
mod request;
mod stopwatch;
mod store_stack;
mod store_status;
mod throttle;
mod timer;
mod tokens;
mod traces;
mod violations;

pub use app::{App, Decided};
pub use decision_json::DecisionJson;
pub use key_rule::{KeyPart, KeyRule};
pub use metrics::Metrics;
pub use net::{Limits, ListenerSettings, ProtocolListener, Tls, TlsFiles, run};
pub use policies::{Override, Policies, PolicyEntry};
pub use protocols::rls;
pub use request::{Batch, Rejection, RejectionKind, Request};
pub use store_stack::StoreStack;
pub use store_status::{MemoryStatus, StatusSource, StoreStatus};
pub use tokens::{Authenticator, Scope, Token, Tokens, Verbs};
pub use violations::ViolationLog;
