//! The examples of the tower layer, each run as a process and tested over a real socket.

#![cfg(all(feature = "axum", feature = "tonic"))]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod axum_tiers;
mod outgoing;
mod process;
mod tonic;
