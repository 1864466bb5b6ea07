//! The service: `slidegate serve`, `check` and `validate`.
//!
//! A library only so that tests can start the server in their own process, on a clock of their own. Protocols
//! decode a [`Request`], call [`App`], and encode what it says.

mod app;
mod authenticator;
mod changes;
pub mod cli;
mod decision_counts;
mod decision_json;
mod environment;
mod envoy_limits;
mod envoy_reload;
mod explain;
mod heavy_hitters;
mod json_fragments;
mod log_once;
mod metrics;
mod net;
mod policies;
mod policy_metrics;
mod protocols;
mod reload;
mod request;
mod request_key;
mod stopwatch;
mod store;
mod store_stack;
mod store_status;
mod throttle;
mod timer;
mod traces;
mod violations;

pub use app::{App, Decided};
pub use authenticator::Authenticator;
pub use decision_json::DecisionJson;
pub use metrics::Metrics;
pub use net::{ListenerSettings, ProtocolListener, Tls, run};
pub use policies::Policies;
pub use protocols::rls;
pub use request::{Batch, Rejection, RejectionKind, Request};
pub use store::AnyStore;
pub use store_stack::{ProtectedStore, StoreStack};
pub use store_status::{MemoryStatus, StatusSource, StoreStatus};
