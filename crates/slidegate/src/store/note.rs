//! A text that everybody who shares a store can read and change, such as what operators have decided while it runs.

use std::future::Future;

use crate::error::StoreError;

/// The text, and a number that is another one each time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Note {
    /// Which one it is; 0 if there is none yet. Whoever writes chooses a new one at random, so that nobody who has seen
    /// another takes it for that, even if the store has forgotten everything in between.
    pub version: u64,
    /// What it says.
    pub text: String,
}

impl Note {
    /// The largest version: what every store can hold.
    pub const MAX_VERSION: u64 = i64::MAX as u64;

    /// A new one, with a version of its own.
    pub fn new(text: String) -> Self {
        Self { version: fastrand::u64(1..=Self::MAX_VERSION), text }
    }
}

/// Where such a note is kept. It is for what changes a few times an hour and is looked at a few times a second.
pub trait Notes: Send + Sync {
    /// The note, unless it is the one that is `known`; 0 is known to whoever has seen none.
    fn read_note(&self, known: u64) -> impl Future<Output = Result<Option<Note>, StoreError>> + Send;

    /// Puts `note` in place of the one that is `known`. `false`, with nothing changed, if it is another one by now.
    fn write_note(&self, known: u64, note: &Note) -> impl Future<Output = Result<bool, StoreError>> + Send;
}
