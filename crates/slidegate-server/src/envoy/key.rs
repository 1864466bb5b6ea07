//! What a descriptor is counted by.

/// Longer keys are counted by their hash.
const MOST_BYTES: usize = 1024;

/// Keys and values, each with its length before it, so that `a, bc` never meets `ab, c`.
#[derive(Debug, Default)]
pub(crate) struct CounterKey(Vec<u8>);

impl CounterKey {
    pub(crate) fn push(&mut self, key: &[u8], value: &[u8]) {
        self.0.reserve(key.len() + value.len() + 2);
        for part in [key, value] {
            self.push_length(part.len());
            self.0.extend_from_slice(part);
        }
    }

    /// Seven bits at a time, the last of them without the highest bit.
    fn push_length(&mut self, mut length: usize) {
        while length > 0x7f {
            self.0.push(length as u8 | 0x80);
            length >>= 7;
        }
        self.0.push(length as u8);
    }

    /// The bytes to count by.
    pub(crate) fn into_bytes(mut self) -> Vec<u8> {
        if self.0.len() > MOST_BYTES {
            let hash = blake3::hash(&self.0);
            self.0.clear();
            // No length stands for itself here: what was put together above never begins like this.
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
        let mut made = CounterKey::default();
        for (key, value) in parts {
            made.push(key.as_bytes(), value.as_bytes());
        }
        made.into_bytes()
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
        for (place, one) in keys.iter().enumerate() {
            assert!(keys[place + 1..].iter().all(|other| other != one), "{one:?}");
            assert!(one.len() <= MOST_BYTES);
        }
    }
}
