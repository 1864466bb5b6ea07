//! Rate limits for [tower](https://docs.rs/tower) services such as axum, tonic and hyper, and for clients.

mod body;
mod choice;
mod future;
mod head;
mod key;
mod key_bytes;
mod layer;
mod limited;
mod limiter_store;
mod not_allowed;
mod pause;
mod payment;
mod rules;
mod service;
mod tier;
mod wait;

pub use body::ResponseBody;
pub use future::ResponseFuture;
pub use head::RequestHead;
pub use key::Key;
pub use layer::RateLimitLayer;
pub use limited::Limited;
pub use limiter_store::LimiterStore;
pub use not_allowed::{NotAllowed, Undecided};
pub use rules::MissingKey;
pub use service::RateLimit;
pub use tier::Tier;
pub use wait::{Wait, WaitError, WaitLayer};

pub use crate::address::{ClientAddress, PeerAddress};
pub use crate::headers::HeaderStyle;
