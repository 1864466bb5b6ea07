//! Bytes of a key.

use std::ops::Deref;

/// Bytes of a key. Short ones, such as addresses, need no allocation, which would be one per request.
#[derive(Clone, Debug)]
pub(super) enum KeyBytes {
    Short { length: usize, bytes: [u8; Self::SHORT_LENGTH] },
    Long(Vec<u8>),
}

impl KeyBytes {
    const SHORT_LENGTH: usize = 16;

    /// Shared key of all requests without one. No extracted key is empty.
    pub(super) const EMPTY: Self = Self::Short { length: 0, bytes: [0; Self::SHORT_LENGTH] };
}

impl From<&[u8]> for KeyBytes {
    fn from(key: &[u8]) -> Self {
        let length = key.len();
        if length > Self::SHORT_LENGTH {
            return Self::Long(key.to_vec());
        }
        let mut bytes = [0; Self::SHORT_LENGTH];
        bytes[..length].copy_from_slice(key);
        Self::Short { length, bytes }
    }
}

impl Deref for KeyBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Short { bytes, length } => &bytes[..*length],
            Self::Long(key) => key,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_every_length_keep_their_bytes() {
        let long = [7; 300];
        for length in [0, 1, 4, 15, 16, 17, 300] {
            assert_eq!(*KeyBytes::from(&long[..length]), long[..length]);
        }
        assert!(KeyBytes::EMPTY.is_empty());
    }
}
