//! How large the table may become, and what happens then.

use std::fmt;

use super::slots::{SLOT_BYTES, SLOTS_PER_PAGE};

/// What happens to a new key when there is room for no more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WhenFull {
    /// The new key takes the place of another one. Of its page, of which there is one for 175 keys, the sixteen nearest are
    /// looked at, and more as long as they have spent three quarters of their limits or more: one that counts nothing goes,
    /// else, among those not denied, the one that has spent the least of its limit, to a sixty-fourth, and of these the one
    /// that would count nothing soonest. If all keys of the page are denied, which is to say that nothing is left to them, one
    /// that is not goes from any other page; and only if all keys of the table are denied one of those does, of its page or
    /// another the one that would be denied the shortest. (One page in a hundred million has no slot left when the table is
    /// full, and gives up one of its own.) Where `max_bytes` is reached the same holds among those that take bytes beside the
    /// table. What it had spent is forgotten. The default.
    #[default]
    Evict,
    /// The new key is refused with an error ([`StoreError::is_full`](crate::StoreError::is_full)) unless a key of its page
    /// counts nothing, which goes, or one of sixteen other pages, each time others.
    Refuse,
}

/// In a model, pages have four slots, and are to be full.
const KEYS_PER_PAGE: usize = if cfg!(slidegate_loom) { 4 } else { 175 };

/// What may be kept beside the table for each key, unless told otherwise: wide counters and records.
const BESIDE_BYTES_PER_KEY: usize = 256;
/// And at the least: few keys may have long logs.
const BESIDE_BYTES: usize = 64 << 20;

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
    /// For 175 keys there is a page of 256 slots. Keys fall into pages at random, with a standard deviation of 13, so
    /// that one in a hundred million pages overflows when the table is full: the load is as high as that allows.
    pub(super) fn pages(&self) -> usize {
        self.max_keys.div_ceil(KEYS_PER_PAGE)
    }

    /// The table, and what it needs for each page besides.
    fn table_bytes(&self) -> usize {
        let slots = self.pages().saturating_mul(SLOTS_PER_PAGE * SLOT_BYTES);
        slots.saturating_add(slots / 16)
    }

    pub(super) fn max_bytes(&self) -> usize {
        let beside = BESIDE_BYTES.max(self.max_keys.saturating_mul(BESIDE_BYTES_PER_KEY));
        self.max_bytes.unwrap_or_else(|| self.table_bytes().saturating_add(beside))
    }

    pub(super) fn set_max_bytes(&mut self, max_bytes: usize) {
        self.max_bytes = Some(max_bytes);
    }

    pub(super) fn check(&self) -> Result<(), SettingsError> {
        const MOST_KEYS: usize = 1 << 31;
        if !(1..=MOST_KEYS).contains(&self.max_keys) {
            let message = format!("{} is not between 1 and 2^31", self.max_keys);
            return Err(SettingsError { field: "max_keys", message });
        }
        let (max_bytes, least) = (self.max_bytes(), self.table_bytes());
        // What is beside the table is as large again.
        if least > isize::MAX.cast_unsigned() / 2 {
            let message = format!("{} is more than this machine can address", self.max_keys);
            return Err(SettingsError { field: "max_keys", message });
        }
        if max_bytes < least {
            let message = format!("{max_bytes} is too few for {} keys; at least {least}", self.max_keys);
            return Err(SettingsError { field: "max_bytes", message });
        }
        Ok(())
    }
}

#[cfg(not(slidegate_loom))]
impl Settings {
    /// Whether there is as much memory to address as the table takes: it is used as it is touched.
    pub(super) fn try_memory(&self) -> Result<(), SettingsError> {
        let words = self.table_bytes() / size_of::<u64>();
        // The slots, and as much again for what may stand beside them.
        let parts = [(); 2].map(|()| bytemuck::try_zeroed_slice_box::<u64>(words));
        if parts.iter().all(Result::is_ok) {
            return Ok(());
        }
        let bytes = 2 * self.table_bytes();
        let message = format!("{} takes {bytes} bytes to address, which cannot be had here", self.max_keys);
        Err(SettingsError { field: "max_keys", message })
    }
}

#[cfg(slidegate_loom)]
impl Settings {
    pub(super) fn try_memory(&self) -> Result<(), SettingsError> {
        Ok(())
    }
}

/// Why a store was not made: the setting, and what it allows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SettingsError {
    field: &'static str,
    message: String,
}

impl SettingsError {
    /// The setting that was refused.
    pub fn field(&self) -> &'static str {
        self.field
    }

    /// What was wrong with it and what is allowed.
    pub fn message(&self) -> &str {
        &self.message
    }
}

impl fmt::Display for SettingsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.message)
    }
}

impl std::error::Error for SettingsError {}
