//! Limits of connections.

/// Maximum size of a request head.
pub(super) const MAX_HEAD_BYTES: usize = 32 << 10;
/// Maximum number of concurrent streams of an HTTP/2 connection.
pub(super) const MAX_STREAMS: u32 = 64;
/// Size of the chunks in which an HTTP/2 response is sent. A response with a larger body counts as large.
pub(super) const CHUNK_BYTES: usize = 16 << 10;
/// Number of large unread responses of an HTTP/2 connection that suspends further requests.
pub(super) const MAX_UNREAD_RESPONSES: usize = 8;
