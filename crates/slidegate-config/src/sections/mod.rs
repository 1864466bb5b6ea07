//! Sections of the file, one module each.

pub(crate) mod address;
pub(crate) mod admin;
pub(crate) mod connections;
pub(crate) mod degrade;
pub(crate) mod envoy;
pub(crate) mod key;
pub(crate) mod listen;
pub(crate) mod memory;
pub(crate) mod policy;
pub(crate) mod quota;
pub(crate) mod token;
