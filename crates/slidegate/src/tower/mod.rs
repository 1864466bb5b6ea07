//! Limits for any [tower](https://docs.rs/tower) service: axum, tonic, hyper, and clients.

mod address;
mod after;
mod body;
mod future;
mod head;
mod key;
mod layer;
mod limited;
mod name;
mod pause;
mod refusal;
mod service;
mod style;
mod tier;
mod wait;

pub use address::{ClientAddress, PeerAddress};
pub use body::ResponseBody;
pub use future::ResponseFuture;
pub use head::RequestHead;
pub use key::Key;
pub use layer::{MissingKey, RateLimitLayer};
pub use limited::Limited;
pub use refusal::{Refusal, Undecided};
pub use service::RateLimit;
pub use style::HeaderStyle;
pub use tier::Tier;
pub use wait::{Wait, WaitError, WaitLayer};
