//! Counter keys of descriptors.

/// Maximum length of a key; a longer key is replaced by its hash.
const MAX_KEY_BYTES: usize = 1024;

/// Keys and values, each with a length prefix, so that `a, bc` and `ab, c` differ.
#[derive(Debug, Default)]
pub struct CounterKey(Vec<u8>);

impl CounterKey {
    pub fn push(&mut self, key: &[u8], value: &[u8]) {
        self.0.reserve(key.len() + value.len() + 2);
        for part in [key, value] {
            self.push_length(part.len());
            self.0.extend_from_slice(part);
        }
    }

    /// Appends a length as LEB128: seven bits per byte, the highest bit set on all bytes but the last.
    fn push_length(&mut self, mut length: usize) {
        while length > 0x7f {
            self.0.push(length as u8 | 0x80);
            length >>= 7;
        }
        self.0.push(length as u8);
    }

    /// Returns the key of the counter.
    pub fn into_bytes(mut self) -> Vec<u8> {
        if self.0.len() > MAX_KEY_BYTES {
            let hash = blake3::hash(&self.0);
            self.0.clear();
            // A length never encodes to this prefix, so a hash collides with no unhashed key.
            self.0.extend_from_slice(&[0xff, 0xff, 0xff, 0xff]);
            self.0.extend_from_slice(hash.as_bytes());
        }
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(parts: &[(&str, &str)]) -> Vec<u8> {
        let mut counter_key = CounterKey::default();
        for (key, value) in parts {
            counter_key.push(key.as_bytes(), value.as_bytes());
        }
        counter_key.into_bytes()
    }

    #[test]
    fn no_two_descriptors_share_a_key() {
        let long = "x".repeat(5000);
        let keys = [
            key(&[("a", "bc")]),
            key(&[("ab", "c")]),
            key(&[("a", "b"), ("c", "")]),
            key(&[("a", "b"), ("", "c")]),
            key(&[("a", &long)]),
            key(&[("a", &format!("{long}x"))]),
            key(&[("a", &long[..128])]),
        ];
        for (index, key) in keys.iter().enumerate() {
            assert!(keys[index + 1..].iter().all(|other| other != key), "{key:?}");
            assert!(key.len() <= MAX_KEY_BYTES);
        }
    }
}
