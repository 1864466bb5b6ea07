//! Capacity limits of the table, and eviction of keys when a limit is reached.

mod capacity;
mod denied_pages;
mod policy;
mod rank;
#[cfg(test)]
mod tests;

pub(super) use capacity::CapacityError;
pub(super) use denied_pages::DeniedPages;
pub(super) use rank::{EvictionRank, eviction_rank};
