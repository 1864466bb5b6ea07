//! Protocols: each decodes requests, calls the engine and encodes responses.

pub(crate) mod admin;
mod forward_auth;
pub(crate) mod headers;
pub(crate) mod http;
mod openapi;
mod probes;
mod rates;
pub(crate) mod resp;
pub mod rls;
pub(crate) mod router;
mod throttlecrab;
