//! Protocols: each decodes requests, calls the engine and encodes responses.

pub(crate) mod admin;
pub(crate) mod headers;
pub(crate) mod http;
pub(crate) mod resp;
pub mod rls;
pub(crate) mod throttlecrab;
