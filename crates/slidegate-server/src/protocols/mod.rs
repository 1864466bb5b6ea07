//! Protocols: each decodes requests, calls the engine and encodes responses.

pub(crate) mod admin;
pub(crate) mod headers;
pub(crate) mod http;
mod rates;
pub(crate) mod resp;
pub mod rls;
mod throttlecrab;
