//! The layer, in process and over real sockets.

#![cfg(all(feature = "axum", feature = "tonic"))]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod after;
mod grpc;
mod layer;
mod plain;
mod readiness;
mod services;
mod sockets;
mod waiting;
