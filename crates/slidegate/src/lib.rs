//! Rate limiting with exact limits, in memory or over a store that many processes share.
//!
//! ```
//! use slidegate::Limiter;
//!
//! let api = Limiter::in_memory("api", ["10/1s", "1000/1h"])?;
//!
//! let decision = api.check_now("user:1")?;
//! if decision.is_allowed() {
//!     // serve the request; `decision.remaining()` units are left
//! } else if let Some(wait) = decision.retry_after() {
//!     // respond with 429; this request is allowed after `wait`, and not one millisecond earlier
//!     # let _ = wait;
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A [`Limiter`] has one policy: quotas that are decided together, all or nothing. A denial spends nothing from any of them.
//! The limiter is the same type over every store, so nothing has to be replaced when a second process joins:
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use slidegate::Limiter;
//!
//! let api = Limiter::connect("redis://127.0.0.1", "api", ["10/1s", "1000/1h"]).await?;
//! let decision = api.check("user:1").await?;
//! # Ok(())
//! # }
//! ```
//!
//! # Costs, tiers, and several policies
//!
//! ```
//! use std::sync::Arc;
//!
//! use slidegate::{Limiter, Policy, Request, StoreStack};
//!
//! // 40 units at once, under the quotas of a tier. The tiers of a policy share their counts.
//! let uploads = Limiter::builder("uploads").quotas(["100/1h"]).tier("premium", ["5000/1h"]).in_memory()?;
//! let decision = uploads.check_now(Request::key("user:1").cost(40).tier("premium"))?;
//! assert_eq!(decision.remaining(), 4960);
//!
//! // Many requests in one call; over a remote store, in one round trip.
//! let decisions = uploads.check_many_now(["user:2", "user:3"]);
//! assert!(decisions.iter().all(|decision| decision.as_ref().is_ok_and(|decision| decision.is_allowed())));
//!
//! // Several policies that share a store.
//! let store = Arc::new(StoreStack::builder().max_keys(10_000).in_memory()?);
//! let login = Limiter::over(store.clone(), Policy::parse("login", ["5/15m strict-window"])?);
//! let search = Limiter::over(store.clone(), Policy::parse("search", ["30/1m"])?);
//! assert!(login.check_now("user:1")?.is_allowed() && search.check_now("user:1")?.is_allowed());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Which algorithm
//!
//! The algorithm follows the quota: `100/1m`, `5/15m strict-window`, `50/1s token-bucket burst=200`. L is the limit.
//!
//! | algorithm | use it for | admits in any window |
//! |---|---|---|
//! | `sliding-window` (default) | nearly everything | an estimate of the rolling count; at worst 2L − 1 |
//! | `strict-window` | log-ins, payments | at most L, in the client's real time |
//! | `sliding-log` | small limits that must be exact | exactly L, in the client's real time |
//! | `token-bucket` | steady rates with a burst | burst + refill |
//! | `fixed-window` | compatibility with limiters that have boundaries | up to 2L across a boundary |
//!
//! ```
//! use std::time::Duration;
//!
//! use slidegate::{Limiter, ManualClock, Request};
//!
//! let clock = ManualClock::at(0);
//! let login = Limiter::builder("login").quotas(["5/15m strict-window"]).clock(clock.clone()).in_memory()?;
//! assert!(login.check_now(Request::key("10.0.0.1").cost(5))?.is_allowed());
//! assert_eq!(login.check_now("10.0.0.1")?.retry_after(), Some(Duration::from_secs(900)));
//! clock.advance(899_999);
//! assert!(!login.check_now("10.0.0.1")?.is_allowed(), "one millisecond too early");
//! clock.advance(1);
//! assert!(login.check_now("10.0.0.1")?.is_allowed());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Guarantees and limits
//!
//! - A request for more than a quota's capacity is denied for ever ([`Decision::is_never`]) and changes nothing.
//! - All stores compute the same integers. Limits go up to 2^48 units, windows from 1 ms to 366 days, and a policy has up to 16
//!   quotas.
//! - A remote store decides by the clock of its server, in one round trip. Clocks of callers never affect a decision.
//! - A request that may have been counted is never sent again; [`StoreError::may_have_counted`] reports it.
//! - The memory store is bounded in keys and bytes, and a flood of new keys evicts denied keys last. It loses its counts when
//!   the process ends.
//! - A denial is not an error. An error of the store reaches the caller, unless the builder adds a fallback, whose decisions
//!   have the source [`Source::Fallback`].
//!
//! # Features
//!
//! None is enabled by default.
//!
//! | feature | adds |
//! |---|---|
//! | `redis` | the URLs `redis://…`, `rediss://…`, `valkey://…` and those of sentinels, clusters and Unix sockets |
//! | `postgres` | the URL `postgres://…` |
//! | `resilience` | time budget, fallback with circuit breaker, denial cache, retry jitter, modes and key lists |
//! | `http` | rate-limit headers of responses in several styles, and client addresses behind proxies, without tower |
//! | `tower` | layers for services and clients of [tower](https://docs.rs/tower) |
//! | `axum`, `tonic` | client addresses and routes of these frameworks |
//!
//! # Performance
//!
//! A check of a hot key in memory takes about 130 instructions. It is one compare-and-swap without a lock; a denial writes
//! nothing. [`Limiter::check_now`] neither allocates nor waits, and the numbers of a decision are computed when they are read.
//! [`Limiter::check_each_now`] prefetches the memory of sixteen keys at a time.
//!
//! Over Redis and PostgreSQL, concurrent checks share calls, so that throughput does not depend on the round-trip time.
//!
//! # Below the limiter
//!
//! [`store`] has the stores, the trait for a custom one, and [`StoreLimiter`](store::StoreLimiter), which decides under any
//! policy.

#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(feature = "http")]
pub mod address;
mod clock;
mod error;
pub mod headers;
mod limiter;
mod request;
#[cfg(feature = "resilience")]
pub mod resilience;
mod stack;
pub mod store;
#[cfg(feature = "tower")]
pub mod tower;

pub use clock::{Clock, ManualClock, PreciseClock, Sleep, SystemClock};
pub use error::{BuildError, SettingsError, StoreError};
pub use headers::{rate_limit_headers, retry_after_seconds};
pub use limiter::{Limiter, LimiterBuilder};
pub use request::Request;
pub use slidegate_core::{
    Algorithm, Anchor, Check, Decision, FallbackReason, MAX_LIMIT, MAX_NAME_BYTES, MAX_QUOTAS, MAX_WINDOW_MS,
    Policy, Quota, QuotaError, QuotaReport, QuotaReports, QuotaReportsIter, Retry, Source, Verb,
    parse_window,
};
pub use stack::{StoreStack, StoreStackBuilder};

/// Runs the examples of the crate's README as tests.
#[cfg(all(doctest, feature = "redis"))]
#[doc = include_str!("../README.md")]
struct CrateReadme;

/// Runs the examples of the README as tests.
#[cfg(all(doctest, feature = "axum"))]
#[doc = include_str!("../../../README.md")]
struct Readme;

/// Runs the examples of the library guide as tests.
#[cfg(all(doctest, feature = "http", feature = "redis"))]
#[doc = include_str!("../../../docs/library.md")]
struct LibraryGuide;

/// Runs the examples of the guides to remote stores as tests.
#[cfg(all(doctest, feature = "redis", feature = "postgres"))]
#[doc = include_str!("../../../docs/redis.md")]
#[doc = include_str!("../../../docs/postgres.md")]
struct StoreGuides;

/// Runs the examples of the resilience guide as tests.
#[cfg(all(doctest, feature = "resilience", feature = "redis"))]
#[doc = include_str!("../../../docs/resilience.md")]
struct ResilienceGuide;

/// Runs the examples of the tower guide as tests.
#[cfg(all(doctest, feature = "axum"))]
#[doc = include_str!("../../../docs/tower.md")]
struct TowerGuide;
