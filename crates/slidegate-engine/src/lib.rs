//! The engine of the service: the policies in force, one function that decides under them, and the records of its decisions.
//!
//! The crate has no type of a protocol. A protocol decodes an [`UncheckedRequest`], lets the [`Engine`] decide it, and encodes
//! the decision.
#![expect(missing_docs, reason = "an internal crate: names that speak for themselves have no text")]
#![allow(
    rustdoc::private_intra_doc_links,
    reason = "an internal crate: its documentation is read with the code"
)]

mod authenticator;
pub mod changes;
pub mod decision_counts;
mod engine;
mod envoy_limits;
mod explain;
pub mod heavy_hitters;
mod policies;
mod policy_metrics;
mod rates;
mod readiness;
mod request;
mod selection;
pub mod store_stack;
mod store_status;
mod violations;

pub use self::authenticator::{Authenticator, Credentials, authorize};
pub use self::engine::Engine;
pub use self::envoy_limits::{EnvoyLimits, EnvoyMatch};
pub use self::explain::explain;
pub use self::policies::{Policies, PolicyView, QuotaSource};
pub use self::policy_metrics::{IN_REQUEST_METRICS, PolicyMetrics};
pub use self::rates::{BucketRate, RatePolicies};
pub use self::readiness::Readiness;
pub use self::request::{BlockMs, Cost, Rejection, RejectionKind, UncheckedRequest, parse_json};
pub use self::selection::{Decided, Prepared, SelectedPolicy, Selection, policy_of_quotas, valid_key};
pub use self::store_stack::StoreStack;
pub use self::store_status::{MemoryStatus, STORE_ERRORS, StatusSource, StoreStatus};
pub use self::violations::Violations;
