//! Degradation layer over a store that fails on demand.

#![cfg(feature = "resilience")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod fallback;
mod faulty;
mod simulation;
