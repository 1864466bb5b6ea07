//! Identity and order of changes, removals and audit entries.

use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicU32, Ordering};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Identity of a change, a removal or an audit entry, written as `MS-RANDOM` in hexadecimal.
///
/// Its time is that of a hybrid logical clock: the wall clock of the node, but always later than every identity that the
/// node has seen. An operation therefore sorts after all operations that its node has seen, and after all others as far
/// as the clocks of the nodes agree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OperationId {
    pub(super) ms: u64,
    pub(super) random: u64,
}

impl OperationId {
    /// Returns a new identity. Identities of one process and one millisecond sort in the order of creation.
    pub fn new(ms: u64) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let sequence = u64::from(NEXT.fetch_add(1, Ordering::Relaxed));
        Self { ms, random: sequence << 32 | u64::from(fastrand::u32(..)) }
    }

    /// Derives the identity from the content, for documents of older builds, which have none: every node derives the same.
    pub(super) fn from_content(ms: u64, content: &impl Serialize) -> Self {
        let content = serde_json::to_vec(content).unwrap_or_default();
        let digest = blake3::hash(&content);
        let random = digest.as_bytes().iter().take(8).fold(0, |sum, byte| sum << 8 | u64::from(*byte));
        Self { ms, random }
    }

    /// Returns whether the item comes from a document of an older build.
    pub(super) fn is_missing(self) -> bool {
        self == Self::default()
    }
}

impl fmt::Display for OperationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:011x}-{:016x}", self.ms, self.random)
    }
}

impl FromStr for OperationId {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |digits| u64::from_str_radix(digits, 16).ok();
        text.split_once('-')
            .and_then(|(ms, random)| Some(Self { ms: number(ms)?, random: number(random)? }))
            .ok_or_else(|| format!("{text:?} is not an identity; expected MS-RANDOM in hexadecimal"))
    }
}

impl Serialize for OperationId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for OperationId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}
