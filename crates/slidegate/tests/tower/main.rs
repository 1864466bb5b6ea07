//! The layer, in process and over real sockets.

#![cfg(feature = "tower")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod layer;
mod rig;
mod sockets;
mod waiting;
