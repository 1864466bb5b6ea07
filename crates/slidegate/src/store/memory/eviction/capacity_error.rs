//! Error of a request for capacity.

use crate::error::StoreError;

/// Reason why no slot or no bytes could be allocated.
#[derive(Debug)]
pub(in super::super) enum CapacityError {
    Keys,
    Bytes,
    /// Another thread holds the lock of this page, which may have a victim. The caller retries after it has released
    /// its own page, for which the other thread may be waiting.
    Busy(usize),
}

impl CapacityError {
    /// Returns the number of the page to wait for before a retry, or the final error.
    pub(in super::super) fn busy_page(self) -> Result<usize, StoreError> {
        match self {
            Self::Keys => Err(StoreError::full("the memory store is full: max_keys is reached")),
            Self::Bytes => Err(StoreError::full("the memory store is full: max_bytes is reached")),
            Self::Busy(page) => Ok(page),
        }
    }
}
