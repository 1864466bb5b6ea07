//! What a connection may take.

use std::time::Duration;

/// The largest head of a request.
pub(super) const HEAD_BYTES: usize = 32 << 10;
/// How many requests may be under way on one HTTP/2 connection.
pub(super) const STREAMS: u32 = 64;
/// How much of an answer is handed on at once there.
pub(super) const PIECE_BYTES: usize = 16 << 10;
/// How many answers of more than that may wait there to be taken, before anything else is answered.
pub(super) const LARGE_ANSWERS: usize = 8;

/// What connections may take, so that nobody holds on to what others need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// How many there may be. One more is closed at once.
    pub connections: usize,
    /// How long a connection may take until the head of its next request is complete, or that of its first; and how long
    /// it may take nothing of an answer, or not all of a large one. With HTTP/2, how long there may be no request.
    pub head_timeout: Duration,
    /// How long the body of a request may take.
    pub body_timeout: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 16_384,
            head_timeout: Duration::from_secs(75),
            body_timeout: Duration::from_secs(10),
        }
    }
}
