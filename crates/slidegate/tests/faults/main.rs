//! Fault suite of the remote stores: guarantees while a server or its network fails, each with a real server.
//!
//! A store joins with one [`Backend`](backend::Backend) and one `suite!`. Behaviour of a single store is tested in its
//! folder.

#![cfg(all(feature = "resilience", feature = "postgres", feature = "redis"))]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod backend;
mod postgres;
mod redis;
mod scenarios;
