//! What to do when a store fails, so that the limiter is never the outage.
//!
//! Each part is a [`Store`](crate::Store) over another one, usable alone.

mod breaker;
mod budget;
mod cache;
mod fallback;
mod jitter;
mod rules;
mod shares;
mod signals;
mod switch;

pub use breaker::{Breaker, BreakerSettings, BreakerState, Permit};
pub use budget::Budget;
pub use cache::{CacheSettingsError, DeniedCache, DeniedCacheBuilder};
pub use fallback::{Failure, Fallback, FallbackBuilder};
pub use jitter::Jitter;
pub use rules::{FailureRule, OnFailure};
pub use switch::{Mode, PolicySwitch, Switch};
