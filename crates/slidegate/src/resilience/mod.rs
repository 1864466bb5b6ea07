//! Layers that keep the limiter available while its store fails.
//!
//! Each layer is a [`Store`](crate::store::Store) that wraps another store and is usable alone.

mod breaker;
mod budget;
mod cache;
mod fallback;
mod jitter;
mod rules;
mod shares;
mod switch;
mod telemetry;

pub use breaker::{Breaker, BreakerSettings, BreakerState, Permit};
pub use budget::Budget;
pub use cache::{DeniedCache, DeniedCacheBuilder};
pub use fallback::{Failure, Fallback, FallbackBuilder};
pub use jitter::Jitter;
pub use rules::{FailureRule, OnFailure};
pub use switch::{Mode, PolicySwitch, Switch};
