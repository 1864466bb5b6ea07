//! Bytes of a key.

use std::net::IpAddr;
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

/// The address in network byte order. Written at once: copying a key whose bytes were written one by one would have to
/// wait for these writes.
impl From<IpAddr> for KeyBytes {
    fn from(address: IpAddr) -> Self {
        let (length, bits) = match address {
            IpAddr::V4(address) => (4, u128::from(address.to_bits()) << 96),
            IpAddr::V6(address) => (16, address.to_bits()),
        };
        Self::Short { length, bytes: bits.to_be_bytes() }
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

    #[test]
    fn addresses_are_their_octets() {
        for (address, octets) in [
            ("10.1.2.3", &[10, 1, 2, 3][..]),
            ("2001:db8::7", &[0x20, 1, 0x0D, 0xB8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7]),
        ] {
            assert_eq!(*KeyBytes::from(address.parse::<IpAddr>().unwrap()), *octets);
        }
    }
}
