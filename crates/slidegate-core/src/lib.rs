//! The exact arithmetic of rate limiting.
//!
//! Five algorithms, policies of several quotas decided all or nothing, and a retry time that is exact to the
//! millisecond. Pure: no clock is read, nothing is awaited or written, no float is used, and there are no
//! dependencies. `now` is an argument, and what is kept between two decisions is a value.
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
//! // Two at the start of a window weigh one when half of the next one is over.
//! assert_eq!(denied.retry_after_ms(), Some(1500));
//! assert!(!check_at(11_499).is_allowed());
//! assert!(check_at(11_500).is_allowed());
//! # Ok::<(), slidegate_core::QuotaError>(())
//! ```
//!
//! Stores that compute elsewhere (in Lua, in SQL) give the same integers; this crate is what they are
//! compared with.

mod action;
mod carry_over;
mod check;
mod counter;
mod decide;
mod decision;
mod exact;
mod fixed_window;
mod moment;
mod narrow_bucket;
mod policy;
mod quota;
mod reports;
mod sliding_log;
mod sliding_window;
mod state;
mod strict_window;
mod text;
mod token_bucket;
mod within;

pub use action::{Action, Verb};
pub use check::Check;
pub use counter::{Counter, MAX_COUNT, Parts};
pub use decide::{decide, decide_matched, decide_one};
pub use decision::{Decision, QuotaReport, Reason, Retry, Source};
pub use fixed_window::{FixedWindow, FixedWindowView};
pub use moment::Moment;
pub use narrow_bucket::{NarrowBucket, NarrowBucketView};
pub use policy::{MAX_NAME_BYTES, MAX_QUOTAS, Policy};
pub use quota::{Algorithm, Anchor, DEFAULT_SLOTS, MAX_LIMIT, MAX_WINDOW_MS, Quota, QuotaError, SLOTS_RANGE};
pub use reports::{QuotaReports, QuotaReportsIter};
pub use sliding_log::{SlidingLog, SlidingLogView};
pub use sliding_window::{SlidingWindow, SlidingWindowView};
pub use state::{State, StateView};
pub use strict_window::{Pair, StrictWindow, StrictWindowView};
pub use text::parse_window;
pub use token_bucket::{TokenBucket, TokenBucketView};
pub use within::{Outcome, check_within};
