//! Layers that keep the limiter available while its store fails.
//!
//! Each layer is a [`Store`](crate::store::Store) that wraps another store and is usable alone. A
//! [`StoreStack`](crate::StoreStack) has them in their order.

mod breaker;
mod budget;
mod cache;
mod error_counter;
mod fallback;
mod jitter;
mod mode;
mod rules;
mod shares;
mod switch;
mod telemetry;

pub use breaker::{Breaker, BreakerSettings, BreakerState, Permit};
pub use budget::Budget;
pub use cache::{DeniedCache, DeniedCacheBuilder};
#[doc(hidden)]
pub use error_counter::ErrorCounter;
pub use fallback::{Failure, Fallback, FallbackBuilder};
pub use jitter::Jitter;
pub use mode::Mode;
pub use rules::{FailureRule, OnFailure};
pub use switch::{PolicySwitch, Switch};
