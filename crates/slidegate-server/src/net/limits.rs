//! What a connection may take.

/// The largest head of a request.
pub(super) const HEAD_BYTES: usize = 32 << 10;
/// How many requests may be under way on one HTTP/2 connection.
pub(super) const STREAMS: u32 = 64;
/// How much of an answer is handed on at once there.
pub(super) const PIECE_BYTES: usize = 16 << 10;
/// How many answers of more than that may wait there to be taken, before anything else is answered.
pub(super) const LARGE_ANSWERS: usize = 8;
