//! The service: listeners, protocols and the command line.
//!
//! A library only so that tests can start the server in their own process, on a clock of their own. A protocol decodes a
//! request, lets the engine decide it, and encodes the decision.

mod app;
pub mod cli;
mod environment;
mod envoy_reload;
mod log_once;
mod metrics;
mod net;
mod protocols;
mod reload;
mod stopwatch;
mod timer;
mod traces;

pub use app::App;
pub use metrics::Metrics;
pub use net::{ListenerSettings, ProtocolListener, Tls, run};
pub use protocols::http::DecisionJson;
pub use protocols::rls;
