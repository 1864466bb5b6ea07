//! Size limits of the table, and the behaviour when a limit is reached.

use super::slots::{SLOT_BYTES, SLOTS_PER_PAGE};
use crate::error::SettingsError;

/// Behaviour when a new key comes and the store is full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum WhenFull {
    /// Evicts another key, whose count is lost. The default. The table has a page for every 175 keys. The store
    /// compares the 16 nearest keys of the new key's page, and more while all of them are denied or have spent three
    /// quarters of their limits. The victim is, in this order:
    /// 1. of the compared keys, one whose count has expired;
    /// 2. of the compared keys that are not denied, the key with the least part of its limit spent, in sixty-fourths,
    ///    and among equals the key whose count expires first;
    /// 3. a key of any other page that is not denied, which means that it has something left to spend;
    /// 4. if all keys of the store are denied, the one of this or of another page whose denial ends first.
    ///
    /// A page whose slots are all taken evicts one of its own keys, even a denied one. That happens in one of a hundred
    /// million pages of a full table. When `max_bytes` is reached, the same order applies to the keys that use memory
    /// outside the table.
    #[default]
    Evict,
    /// Rejects the new key with an error ([`StoreError::is_full`](crate::StoreError::is_full)), unless the count of a
    /// key of its page, or of 16 other pages in rotation, has expired.
    Refuse,
}

/// A page of a model has four slots, all of which are to be used.
const KEYS_PER_PAGE: usize = if cfg!(slidegate_loom) { 4 } else { 175 };

/// Default memory outside the table per key, for wide counters and records.
const OUT_OF_LINE_BYTES_PER_KEY: usize = 256;
/// Smallest default memory outside the table: few keys may have long logs.
const MIN_OUT_OF_LINE_BYTES: usize = 64 << 20;

#[derive(Clone, Copy, Debug)]
pub(super) struct Settings {
    pub(super) max_keys: usize,
    max_bytes: Option<usize>,
    pub(super) when_full: WhenFull,
}

impl Default for Settings {
    fn default() -> Self {
        Self { max_keys: 1_000_000, max_bytes: None, when_full: WhenFull::default() }
    }
}

impl Settings {
    /// Returns the number of pages. A page of 256 slots serves 175 keys. Keys are distributed at random, with a
    /// standard deviation of 13 keys per page, so that one in a hundred million pages of a full table overflows.
    pub(super) fn pages(&self) -> usize {
        self.max_keys.div_ceil(KEYS_PER_PAGE)
    }

    /// Returns the bytes of the slots and of the state of the pages.
    fn table_bytes(&self) -> usize {
        let slots = self.pages().saturating_mul(SLOTS_PER_PAGE * SLOT_BYTES);
        slots.saturating_add(slots / 16)
    }

    pub(super) fn max_bytes(&self) -> usize {
        let out_of_line = MIN_OUT_OF_LINE_BYTES.max(self.max_keys.saturating_mul(OUT_OF_LINE_BYTES_PER_KEY));
        self.max_bytes.unwrap_or_else(|| self.table_bytes().saturating_add(out_of_line))
    }

    pub(super) fn set_max_bytes(&mut self, max_bytes: usize) {
        self.max_bytes = Some(max_bytes);
    }

    pub(super) fn check(&self) -> Result<(), SettingsError> {
        const MAX_KEYS: usize = 1 << 31;
        if !(1..=MAX_KEYS).contains(&self.max_keys) {
            let message = format!("{} is not between 1 and 2^31", self.max_keys);
            return Err(SettingsError::new("max_keys", message));
        }
        let (max_bytes, min_bytes) = (self.max_bytes(), self.table_bytes());
        // The wide array has the same size.
        if min_bytes > isize::MAX.cast_unsigned() / 2 {
            let message = format!("{} is more than this machine can address", self.max_keys);
            return Err(SettingsError::new("max_keys", message));
        }
        if max_bytes < min_bytes {
            let message = format!("{max_bytes} is too few for {} keys; at least {min_bytes}", self.max_keys);
            return Err(SettingsError::new("max_bytes", message));
        }
        Ok(())
    }
}

#[cfg(not(slidegate_loom))]
impl Settings {
    /// Checks that the address space for the table can be reserved. Memory is provided as it is first used.
    pub(super) fn try_memory(&self) -> Result<(), SettingsError> {
        let words = self.table_bytes() / size_of::<u64>();
        // The slots and the wide array.
        let parts = [(); 2].map(|()| bytemuck::try_zeroed_slice_box::<u64>(words));
        if parts.iter().all(Result::is_ok) {
            return Ok(());
        }
        let bytes = 2 * self.table_bytes();
        let message = format!(
            "{} needs {bytes} bytes of address space, which this system does not grant",
            self.max_keys
        );
        Err(SettingsError::new("max_keys", message))
    }
}

#[cfg(slidegate_loom)]
impl Settings {
    pub(super) fn try_memory(&self) -> Result<(), SettingsError> {
        Ok(())
    }
}
