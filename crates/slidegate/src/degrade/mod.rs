//! What to do when a store fails, so that the limiter is never the outage.
//!
//! Each part is a [`Store`](crate::Store) over another one, usable alone.

mod budget;

pub use budget::Budget;
