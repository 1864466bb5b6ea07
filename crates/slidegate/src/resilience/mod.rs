//! Layers that keep the limiter available while its store fails.
//!
//! Each layer is a [`Store`](crate::store::Store) that wraps another store and is usable alone. `stack.rs` pushes the layers
//! of a [`StoreStack`](crate::store::StoreStack) in their order.

mod breaker;
mod budget;
mod cache;
mod error_counter;
mod fallback;
mod jitter;
mod optional;
mod rules;
mod shares;
pub(crate) mod stack;
mod switch;
mod telemetry;

pub use breaker::{Breaker, BreakerSettings, BreakerState, Permit};
pub use budget::Budget;
pub use cache::{DeniedCache, DeniedCacheBuilder};
pub use error_counter::ErrorCounter;
pub use fallback::{Failure, Fallback, FallbackBuilder};
pub use jitter::Jitter;
pub use optional::Optional;
pub use rules::{FailureRule, OnFailure};
pub use switch::{Mode, PolicySwitch, Switch};
