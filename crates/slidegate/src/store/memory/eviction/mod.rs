//! Capacity limits of the table, and eviction of keys when a limit is reached.

mod capacity;
mod capacity_error;
mod policy;
#[cfg(test)]
mod tests;

pub(super) use self::capacity_error::CapacityError;
