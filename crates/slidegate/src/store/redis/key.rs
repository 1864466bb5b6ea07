//! The name of a key in the server.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use slidegate_core::Policy;

use crate::store::identity::Identities;

/// A key that is longer than this is cut short where it is written out.
const MOST_PLAIN_BYTES: usize = 256;

/// How identifiers are written into the server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KeyStyle {
    /// `prefix:{hash}`: nobody can read from it who was limited, and a long key costs no more than a short one.
    #[default]
    Hashed,
    /// `prefix:{hash}:policy:key`: for those who look at their keys. The hash is still there, for it decides the
    /// cluster's slot, which must not be the caller's choice.
    Plain,
}

/// Names keys.
#[derive(Clone)]
pub(super) struct Names {
    prefix: Box<str>,
    identities: Identities,
    style: KeyStyle,
}

impl Names {
    pub(super) fn new(prefix: &str, secret: Option<&str>, style: KeyStyle) -> Self {
        Self { prefix: prefix.into(), identities: Identities::new(secret), style }
    }

    /// The name under which what `key` has spent under `policy` is kept.
    pub(super) fn name(&self, policy: &Policy, key: &[u8]) -> Vec<u8> {
        let mut name = Vec::with_capacity(self.prefix.len() + 28);
        name.extend_from_slice(self.prefix.as_bytes());
        name.extend_from_slice(b":{");
        let at = name.len();
        let identity = self.identities.of(policy, key);
        name.resize(at + identity.len().div_ceil(3) * 4, 0);
        // The slice is long enough, so nothing can fail.
        let written = URL_SAFE_NO_PAD.encode_slice(identity, &mut name[at..]).unwrap_or_default();
        name.truncate(at + written);
        name.push(b'}');
        if self.style == KeyStyle::Plain {
            name.push(b':');
            name.extend_from_slice(policy.name().as_bytes());
            name.push(b':');
            // The hash tells keys apart; this is for people.
            name.extend_from_slice(&key[..key.len().min(MOST_PLAIN_BYTES)]);
        }
        name
    }

    /// What the names of all keys of a policy begin with, and those of no other policy.
    pub(super) fn beginning(&self, policy: &Policy) -> Vec<u8> {
        /// These letters are the bits of the policy.
        const LETTERS: usize = 7;
        let any = self.identities.range(policy).start().to_be_bytes();
        let mut beginning = format!("{}:{{{}", self.prefix, URL_SAFE_NO_PAD.encode(any));
        beginning.truncate(self.prefix.len() + 2 + LETTERS);
        beginning.into_bytes()
    }
}

/// Pattern of the names with this beginning. A prefix may contain characters that are special in patterns.
pub(super) fn pattern(beginning: &[u8]) -> Vec<u8> {
    let mut pattern = Vec::with_capacity(beginning.len() + 8);
    for byte in beginning {
        if b"*?[]^\\-".contains(byte) {
            pattern.push(b'\\');
        }
        pattern.push(*byte);
    }
    pattern.push(b'*');
    pattern
}

/// The cluster's slot of a name: that of what stands between the first braces.
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
    fn fields_never_run_into_each_other() {
        let names = Names::new("sg", None, KeyStyle::Hashed);
        assert_ne!(names.name(&policy("a"), b"bc"), names.name(&policy("ab"), b"c"));
        let made = Policy::anonymous(["1/s".parse().unwrap()]).unwrap();
        assert_ne!(names.name(&policy(made.name()), b"k"), names.name(&made, b"k"));
    }

    #[test]
    fn a_name_is_short_and_depends_on_the_secret() {
        let names = Names::new("sg", None, KeyStyle::Hashed);
        let long = names.name(&policy("a"), &vec![b'x'; 1 << 20]);
        assert_eq!(long.len(), "sg:{}".len() + 22);
        let others = Names::new("sg", Some("hush"), KeyStyle::Hashed);
        assert_ne!(others.name(&policy("a"), b"k"), names.name(&policy("a"), b"k"));
    }

    #[test]
    fn names_of_a_policy_begin_alike() {
        let names = Names::new("a*b", None, KeyStyle::Plain);
        let [one, other] = ["one", "other"].map(policy);
        let beginning = names.beginning(&one);
        for number in 0..100_u8 {
            assert!(names.name(&one, &[number]).starts_with(&beginning));
            assert!(!names.name(&other, &[number]).starts_with(&beginning));
        }
        assert!(pattern(&beginning).starts_with(b"a\\*b:{") && pattern(&beginning).ends_with(b"*"));
    }

    #[test]
    fn a_key_cannot_choose_its_slot() {
        let names = Names::new("sg", None, KeyStyle::Plain);
        let name = names.name(&policy("a"), b"x}{y}");
        assert!(name.ends_with(b"}:a:x}{y}"));
        let long = names.name(&policy("a"), &vec![b'x'; 1 << 20]);
        assert!(long.len() < 300);
        let hashed = Names::new("sg", None, KeyStyle::Hashed).name(&policy("a"), b"x}{y}");
        assert_eq!(slot(&name), slot(&hashed));
    }

    #[test]
    fn slots_are_those_of_the_cluster() {
        // From the specification of the cluster.
        assert_eq!(slot(b"123456789"), 0x31C3);
        assert_eq!(slot(b"{user1000}.following"), slot(b"{user1000}.followers"));
        assert_eq!(slot(b"foo{}{bar}"), crc16::State::<crc16::XMODEM>::calculate(b"foo{}{bar}") % 16384);
    }
}
