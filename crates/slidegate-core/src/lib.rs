//! The exact arithmetic of rate limiting.
//!
//! The crate implements five algorithms, policies of several quotas that are decided all or nothing, and retry times that are
//! exact to the millisecond. It is pure: no clock, no I/O, no async, no floats and no dependencies. The time is an argument,
//! and the state between two decisions is a value.
//!
//! ```
//! use slidegate_core::{Action, Policy, Verb, decide};
//!
//! let policy = Policy::parse("api", ["2/1s", "100/1h"])?;
//! let mut states = Vec::new();
//! let mut check_at = |now_ms| decide(&mut states, &policy, Action::new(Verb::Check, now_ms, 1)).0;
//!
//! assert!(check_at(10_000).is_allowed());
//! assert!(check_at(10_000).is_allowed());
//! let denied = check_at(10_000);
//! assert!(!denied.is_allowed());
//! // Two units at the start of a window weigh one unit in the middle of the next window.
//! assert_eq!(denied.retry_after_ms(), Some(1500));
//! assert!(!check_at(11_499).is_allowed());
//! assert!(check_at(11_500).is_allowed());
//! # Ok::<(), slidegate_core::QuotaError>(())
//! ```
//!
//! Stores that decide in Lua or SQL compute the same integers. Tests compare them with this crate.

mod action;
mod carry_over;
mod check;
mod counter;
mod decide;
mod decision;
mod exact;
mod fast_check;
mod fixed_window;
mod lazy_report;
mod moment;
mod narrow_bucket;
mod policy;
mod quota;
mod report;
mod sliding_log;
mod sliding_window;
mod source;
mod state;
mod strict_window;
mod text;
mod token_bucket;

pub use action::{Action, Verb};
pub use check::Check;
pub use counter::{CountBreakdown, Counter, MAX_COUNT};
pub use decide::{decide, decide_matched, decide_one};
pub use decision::Decision;
pub use fast_check::{FastCheck, fast_check};
pub use fixed_window::{FixedWindow, FixedWindowView};
pub use moment::Moment;
pub use narrow_bucket::{NarrowBucket, NarrowBucketView};
pub use policy::{MAX_NAME_BYTES, MAX_QUOTAS, Policy};
pub use quota::{Algorithm, Anchor, DEFAULT_SLOTS, MAX_LIMIT, MAX_WINDOW_MS, Quota, QuotaError, SLOTS_RANGE};
pub use report::{QuotaReport, QuotaReports, QuotaReportsIter, Retry};
pub use sliding_log::{SlidingLog, SlidingLogView};
pub use sliding_window::{SlidingWindow, SlidingWindowView};
pub use source::{FallbackReason, Source};
pub use state::{State, StateView};
pub use strict_window::{Pair, StrictWindow, StrictWindowView};
pub use text::parse_window;
pub use token_bucket::{TokenBucket, TokenBucketView};

/// Runs the examples of the README as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
