//! Limits for any [tower](https://docs.rs/tower) service: axum, tonic, hyper, and clients.

mod address;
mod after;
mod body;
mod key;
mod layer;
mod pause;
mod refusal;
mod style;
mod tier;
mod wait;

pub use address::{ClientAddress, PeerAddress};
pub use body::ResponseBody;
pub use key::Key;
pub use layer::{Limited, MissingKey, RateLimit, RateLimitLayer, ResponseFuture};
pub use refusal::Refusal;
pub use style::HeaderStyle;
pub use tier::Tier;
pub use wait::{Wait, WaitError, WaitLayer};
