//! Rule that derives the key of a request that a proxy checks.

use std::fmt::{self, Write};

use http::HeaderName;

use crate::MAX_KEY_BYTES;

/// Parts that form the key of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyRule {
    parts: Vec<KeyPart>,
}

/// One part of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyPart {
    /// The client's address.
    Address,
    /// The value of a header, such as an API key.
    Header(HeaderName),
}

impl KeyRule {
    /// Returns the rule of policies without their own: the client's address.
    pub fn address() -> Self {
        Self { parts: vec![KeyPart::Address] }
    }

    /// Returns the rule of these parts combined; `None` if there are none.
    pub fn from_parts(parts: Vec<KeyPart>) -> Option<Self> {
        (!parts.is_empty()).then_some(Self { parts })
    }

    /// Returns the parts.
    pub fn parts(&self) -> &[KeyPart] {
        &self.parts
    }

    /// Returns the key of a request, or the part that the request lacks. `value_of` returns the value of a part. A key
    /// that is too long is replaced by its hash.
    pub fn key(&self, value_of: impl Fn(&KeyPart) -> Option<String>) -> Result<String, &KeyPart> {
        let key = self.join(value_of)?;
        // No value of a header begins with this character, so a hash collides with no other key.
        let is_long = key.len() > MAX_KEY_BYTES;
        Ok(if is_long { format!("…{}", blake3::hash(key.as_bytes()).to_hex()) } else { key })
    }

    fn join(&self, value_of: impl Fn(&KeyPart) -> Option<String>) -> Result<String, &KeyPart> {
        let value_of = |part| value_of(part).ok_or(part);
        if let [only] = self.parts.as_slice() {
            return value_of(only);
        }
        let mut key = String::new();
        for part in &self.parts {
            let value = value_of(part)?;
            // The length before each value keeps `a` and `bc` apart from `ab` and `c`.
            let comma = if key.is_empty() { "" } else { "," };
            let _ = write!(key, "{comma}{}:{value}", value.len());
        }
        Ok(key)
    }
}

impl fmt::Display for KeyPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address => f.write_str("address"),
            Self::Header(name) => write!(f, "header {name}"),
        }
    }
}

impl fmt::Display for KeyRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts: Vec<String> = self.parts.iter().map(ToString::to_string).collect();
        f.write_str(&parts.join(" and "))
    }
}
