//! Declaration, reading and description of fields.

pub(crate) mod containers;
pub(crate) mod diagnostics;
pub(crate) mod field;
pub(crate) mod foreign;
pub(crate) mod json;
pub(crate) mod scalars;
pub(crate) mod tree;
