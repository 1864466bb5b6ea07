//! The bytes that stand for somebody.

use std::ops::Deref;

/// Short ones, such as addresses, are kept without an allocation: there is one for each request.
#[derive(Clone, Debug)]
pub(super) enum Name {
    Short { length: usize, bytes: [u8; Self::SHORT] },
    Long(Vec<u8>),
}

impl Name {
    const SHORT: usize = 16;

    /// Empty, which none that was found should be.
    pub(super) const NOBODY: Self = Self::Short { length: 0, bytes: [0; Self::SHORT] };
}

impl From<&[u8]> for Name {
    fn from(name: &[u8]) -> Self {
        let length = name.len();
        if length > Self::SHORT {
            return Self::Long(name.to_vec());
        }
        let mut bytes = [0; Self::SHORT];
        bytes[..length].copy_from_slice(name);
        Self::Short { length, bytes }
    }
}

impl Deref for Name {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Short { bytes, length } => &bytes[..*length],
            Self::Long(name) => name,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_of_any_length_stays_what_it_is() {
        let long = [7; 300];
        for length in [0, 1, 4, 15, 16, 17, 300] {
            assert_eq!(*Name::from(&long[..length]), long[..length]);
        }
        assert!(Name::NOBODY.is_empty());
    }
}
