//! Model of the memory store for the model checker (`make loom`).

pub(super) mod atomics;
#[cfg(test)]
mod tests;
