//! Rate limiting with exact limits, in memory or over a shared store.
//!
//! ```
//! use slidegate::{Limiter, MemoryStore, Policy};
//!
//! let limiter = Limiter::new(MemoryStore::new());
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

mod bound;
mod clock;
mod error;
mod headers;
mod limiter;
#[cfg(feature = "degrade")]
pub mod resilience;
mod store;
#[cfg(feature = "tower")]
pub mod tower;

pub use bound::Bound;
pub use clock::{Clock, ManualClock, PreciseClock, Sleep, SystemClock};
pub use error::StoreError;
pub use headers::{rate_limit_headers, retry_after_seconds};
pub use limiter::Limiter;
pub use slidegate_core::{
    Algorithm, Anchor, Check, Decision, MAX_LIMIT, MAX_NAME_BYTES, MAX_QUOTAS, MAX_WINDOW_MS, Policy, Quota,
    QuotaError, QuotaReport, QuotaReports, QuotaReportsIter, Reason, Retry, Source, Verb, parse_window,
};
pub use store::invalidation::{FeedVersion, InvalidationFeed};
pub use store::memory::{MemoryStore, MemoryStoreBuilder, SettingsError, WhenFull};
#[cfg(feature = "postgres")]
pub use store::postgres::{PostgresSettingsError, PostgresStore, PostgresStoreBuilder, Synchronous};
#[cfg(feature = "redis")]
pub use store::redis::{KeyStyle, RedisStore, RedisStoreBuilder, UrlError};
#[cfg(any(feature = "redis", feature = "postgres"))]
pub use store::shared_document::{SharedDocument, SharedDocuments};
pub use store::{Operation, Store};

/// So are those of the guide to failing stores.
#[cfg(all(doctest, feature = "degrade", feature = "redis"))]
#[doc = include_str!("../../../docs/degrade.md")]
struct DegradeGuide;

/// The README's examples are tests.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

/// And those of the guide to the layer.
#[cfg(all(doctest, feature = "axum"))]
#[doc = include_str!("../../../docs/tower.md")]
struct TowerGuide;
