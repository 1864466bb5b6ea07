//! How large the table may become, and what happens then.

use std::fmt;

use super::slots::{SLOT_BYTES, SLOTS_PER_PAGE};

/// What happens to a new key when there is room for no more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WhenFull {
    /// The new key takes the place of another one nearby: of one that counts nothing if there is any, else of
    /// the one that would count nothing soonest among those not denied, and of a denied one only if all are.
    /// What that one had spent is forgotten. The default.
    #[default]
    Evict,
    /// The new key is refused with an error ([`StoreError::is_full`](crate::StoreError::is_full)) unless a key that
    /// counts nothing can go.
    Refuse,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Settings {
    pub(super) max_keys: usize,
    pub(super) max_bytes: usize,
    pub(super) when_full: WhenFull,
}

impl Default for Settings {
    fn default() -> Self {
        Self { max_keys: 1_000_000, max_bytes: 256 << 20, when_full: WhenFull::default() }
    }
}

impl Settings {
    /// Slots are half as many again as keys: at that load a key finds a place within its neighbourhood.
    pub(super) fn pages(&self) -> usize {
        (self.max_keys + self.max_keys / 2).div_ceil(SLOTS_PER_PAGE).max(1)
    }

    pub(super) fn check(&self) -> Result<(), SettingsError> {
        const MOST_KEYS: usize = 1 << 32;
        if !(1..=MOST_KEYS).contains(&self.max_keys) {
            return Err(SettingsError(format!("max_keys: {} is not between 1 and 2^32", self.max_keys)));
        }
        let table = self.pages() * SLOTS_PER_PAGE * SLOT_BYTES;
        if self.max_bytes < table + table / 16 {
            let message = format!(
                "max_bytes: {} is too few for {} keys; at least {}",
                self.max_bytes,
                self.max_keys,
                table + table / 16
            );
            return Err(SettingsError(message));
        }
        Ok(())
    }
}

/// Why a store was not made: the setting, and what it allows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SettingsError(String);

impl fmt::Display for SettingsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for SettingsError {}
