//! Names of keys in Redis.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use slidegate_core::Policy;

use crate::store::key_hash::KeyHasher;

/// Length to which a plain key is truncated.
const MAX_PLAIN_BYTES: usize = 256;

/// Form in which keys are stored in Redis.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeyStyle {
    /// `prefix:{hash}`: does not reveal the key, and a long key takes no more memory than a short one.
    #[default]
    Hashed,
    /// `prefix:{hash}:policy:key`: readable. The hash remains, because it determines the cluster slot, which callers must
    /// not be able to choose.
    Plain,
}

/// Names keys in Redis.
#[derive(Clone)]
pub(super) struct KeyNames {
    prefix: Box<str>,
    hasher: KeyHasher,
    style: KeyStyle,
}

impl KeyNames {
    pub(super) fn new(prefix: &str, secret: Option<&str>, style: KeyStyle) -> Self {
        Self { prefix: prefix.into(), hasher: KeyHasher::new(secret), style }
    }

    /// Returns the name of the record of `key` under `policy`.
    pub(super) fn name(&self, policy: &Policy, key: &[u8]) -> Vec<u8> {
        let mut name = Vec::with_capacity(self.prefix.len() + 28);
        name.extend_from_slice(self.prefix.as_bytes());
        name.extend_from_slice(b":{");
        let at = name.len();
        let hash = self.hasher.hash(policy, key);
        name.resize(at + hash.len().div_ceil(3) * 4, 0);
        // The slice is long enough, so the encoding cannot fail.
        let written = URL_SAFE_NO_PAD.encode_slice(hash, &mut name[at..]).unwrap_or_default();
        name.truncate(at + written);
        name.push(b'}');
        if self.style == KeyStyle::Plain {
            name.push(b':');
            name.extend_from_slice(policy.name().as_bytes());
            name.push(b':');
            // For readers only: the hash distinguishes the keys.
            name.extend_from_slice(&key[..key.len().min(MAX_PLAIN_BYTES)]);
        }
        name
    }

    /// Returns the prefix of the names of all keys of a policy. Names of other policies do not have it, unless the hashes
    /// of the policies collide.
    pub(super) fn prefix_of(&self, policy: &Policy) -> Vec<u8> {
        /// Letters of the hash that encode the bits of the policy.
        const LETTERS: usize = 7;
        let first = self.hasher.range(policy).start().to_be_bytes();
        let mut prefix = format!("{}:{{{}", self.prefix, URL_SAFE_NO_PAD.encode(first));
        prefix.truncate(self.prefix.len() + 2 + LETTERS);
        prefix.into_bytes()
    }
}

/// Returns the glob pattern of the names with this prefix. Special characters of the prefix are escaped.
pub(super) fn pattern(prefix: &[u8]) -> Vec<u8> {
    let mut pattern = Vec::with_capacity(prefix.len() + 8);
    for byte in prefix {
        if b"*?[]^\\-".contains(byte) {
            pattern.push(b'\\');
        }
        pattern.push(*byte);
    }
    pattern.push(b'*');
    pattern
}

/// Returns the cluster slot of a name: the slot of its hash tag, which is the text between the first braces.
pub(super) fn slot(name: &[u8]) -> u16 {
    let tag = name
        .iter()
        .position(|byte| *byte == b'{')
        .and_then(|open| {
            let rest = &name[open + 1..];
            rest.iter().position(|byte| *byte == b'}').map(|close| &rest[..close])
        })
        .filter(|tag| !tag.is_empty())
        .unwrap_or(name);
    crc16::State::<crc16::XMODEM>::calculate(tag) % 16384
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(name: &str) -> Policy {
        Policy::parse(name, ["1/s"]).unwrap()
    }

    #[test]
    fn a_name_distinguishes_policy_and_key() {
        let names = KeyNames::new("sg", None, KeyStyle::Hashed);
        assert_ne!(names.name(&policy("a"), b"bc"), names.name(&policy("ab"), b"c"));
        let made = Policy::anonymous(["1/s".parse().unwrap()]).unwrap();
        assert_ne!(names.name(&policy(made.name()), b"k"), names.name(&made, b"k"));
    }

    #[test]
    fn a_name_is_short_and_depends_on_the_secret() {
        let names = KeyNames::new("sg", None, KeyStyle::Hashed);
        let long = names.name(&policy("a"), &vec![b'x'; 1 << 20]);
        assert_eq!(long.len(), "sg:{}".len() + 22);
        let others = KeyNames::new("sg", Some("hush"), KeyStyle::Hashed);
        assert_ne!(others.name(&policy("a"), b"k"), names.name(&policy("a"), b"k"));
    }

    #[test]
    fn names_of_a_policy_share_a_prefix() {
        let names = KeyNames::new("a*b", None, KeyStyle::Plain);
        let [one, other] = ["one", "other"].map(policy);
        let prefix = names.prefix_of(&one);
        for number in 0..100_u8 {
            assert!(names.name(&one, &[number]).starts_with(&prefix));
            assert!(!names.name(&other, &[number]).starts_with(&prefix));
        }
        assert!(pattern(&prefix).starts_with(b"a\\*b:{") && pattern(&prefix).ends_with(b"*"));
    }

    #[test]
    fn a_key_cannot_choose_its_slot() {
        let names = KeyNames::new("sg", None, KeyStyle::Plain);
        let name = names.name(&policy("a"), b"x}{y}");
        assert!(name.ends_with(b"}:a:x}{y}"));
        let long = names.name(&policy("a"), &vec![b'x'; 1 << 20]);
        assert!(long.len() < 300);
        let hashed = KeyNames::new("sg", None, KeyStyle::Hashed).name(&policy("a"), b"x}{y}");
        assert_eq!(slot(&name), slot(&hashed));
    }

    #[test]
    fn slots_match_the_specification() {
        // Examples of the Redis Cluster specification.
        assert_eq!(slot(b"123456789"), 0x31C3);
        assert_eq!(slot(b"{user1000}.following"), slot(b"{user1000}.followers"));
        assert_eq!(slot(b"foo{}{bar}"), crc16::State::<crc16::XMODEM>::calculate(b"foo{}{bar}") % 16384);
    }
}
