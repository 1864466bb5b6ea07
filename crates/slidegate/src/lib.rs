//! Rate limiting with exact limits, in memory or over a shared store.
//!
//! ```
//! use slidegate::Policy;
//! use slidegate::store::{MemoryStore, StoreLimiter};
//!
//! let limiter = StoreLimiter::new(MemoryStore::new());
//! let api = Policy::parse("api", ["10/1s", "1000/1h"])?;
//!
//! let decision = limiter.check_now(api.key("user:1"))?;
//! if decision.is_allowed() {
//!     // serve the request; `decision.remaining()` units are left
//! } else {
//!     // respond with 429; retry after `decision.retry_after_ms()`
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod clock;
mod error;
mod headers;
mod limiter;
mod request;
#[cfg(feature = "resilience")]
pub mod resilience;
pub mod store;
#[cfg(feature = "tower")]
pub mod tower;

pub use clock::{AnyClock, Clock, ManualClock, PreciseClock, Sleep, SystemClock};
pub use error::{BuildError, SettingsError, StoreError};
pub use headers::{rate_limit_headers, retry_after_seconds};
pub use limiter::{Limiter, LimiterBuilder};
pub use request::Request;
pub use slidegate_core::{
    Algorithm, Anchor, Check, Decision, MAX_LIMIT, MAX_NAME_BYTES, MAX_QUOTAS, MAX_WINDOW_MS, Policy, Quota,
    QuotaError, QuotaReport, QuotaReports, QuotaReportsIter, Reason, Retry, Source, Verb, parse_window,
};

/// Runs the examples of the README as tests.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

/// Runs the examples of the resilience guide as tests.
#[cfg(all(doctest, feature = "resilience", feature = "redis"))]
#[doc = include_str!("../../../docs/resilience.md")]
struct ResilienceGuide;

/// Runs the examples of the tower guide as tests.
#[cfg(all(doctest, feature = "axum"))]
#[doc = include_str!("../../../docs/tower.md")]
struct TowerGuide;
