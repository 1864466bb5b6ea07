//! The memory store as the model checker sees it, see `make loom`.

pub(super) mod atomics;
#[cfg(test)]
mod tests;
