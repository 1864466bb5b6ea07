//! The service: listeners, protocols and the command line.
//!
//! A library only so that tests can start the server in their own process, on a clock of their own. A protocol decodes a
//! request, lets the engine decide it, and encodes the decision.

pub mod cli;
mod environment;
mod envoy_reload;
mod file_watcher;
mod listeners;
mod log_once;
mod metrics;
mod net;
mod protocols;
mod reload;
mod request_metrics;
mod traces;

pub use listeners::{ListenerSettings, ProtocolListener, run};
pub use metrics::Metrics;
pub use net::tls::Tls;
pub use protocols::http::DecisionJson;
pub use protocols::rls;
