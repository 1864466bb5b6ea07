//! Whom a request counts for when nobody says so: a policy's rule for requests that a proxy asks about.

use std::fmt::{self, Write};
use std::net::IpAddr;

use axum::http::{HeaderMap, HeaderName};
use slidegate::tower::ClientAddress;

use crate::app::MAX_KEY_BYTES;

/// What a key is made of. With more than one part, all of them together.
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
    /// The client's address.
    pub fn address() -> Self {
        Self { parts: vec![KeyPart::Address] }
    }

    /// All of these together; none if there are none.
    pub fn of(parts: Vec<KeyPart>) -> Option<Self> {
        (!parts.is_empty()).then_some(Self { parts })
    }

    /// What it is made of.
    pub fn parts(&self) -> &[KeyPart] {
        &self.parts
    }

    /// The key of a request, or the part that it lacks. `client` says who is believed about addresses. One that is too long
    /// for a key is counted by its hash.
    pub fn find(
        &self,
        client: &ClientAddress,
        peer: Option<IpAddr>,
        headers: &HeaderMap,
    ) -> Result<String, &KeyPart> {
        let key = self.join(client, peer, headers)?;
        // The sign before it is in no header that is read, so nobody has this key who does not have that header.
        let is_long = key.len() > MAX_KEY_BYTES;
        Ok(if is_long { format!("…{}", blake3::hash(key.as_bytes()).to_hex()) } else { key })
    }

    fn join(
        &self,
        client: &ClientAddress,
        peer: Option<IpAddr>,
        headers: &HeaderMap,
    ) -> Result<String, &KeyPart> {
        let found = |part| KeyPart::find(part, client, peer, headers).ok_or(part);
        if let [only] = self.parts.as_slice() {
            return found(only);
        }
        let mut key = String::new();
        for part in &self.parts {
            let value = found(part)?;
            // Each with its length before it, so that `a` and `bc` are not `ab` and `c`.
            let comma = if key.is_empty() { "" } else { "," };
            let _ = write!(key, "{comma}{}:{value}", value.len());
        }
        Ok(key)
    }
}

impl KeyPart {
    fn find(&self, client: &ClientAddress, peer: Option<IpAddr>, headers: &HeaderMap) -> Option<String> {
        match self {
            Self::Address => client.find(peer, headers).map(|address| address.to_string()),
            Self::Header(name) => {
                let mut values = headers.get_all(name).iter();
                // If it is there twice, whoever checks it may have looked at the other one.
                let only = values.next().filter(|_| values.next().is_none())?;
                only.to_str().ok().filter(|value| !value.is_empty()).map(str::to_owned)
            }
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    fn header(name: &'static str) -> KeyPart {
        KeyPart::Header(HeaderName::from_static(name))
    }

    fn headers(lines: &[(&'static str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(*name, value.parse().unwrap());
        }
        headers
    }

    #[test]
    fn a_key_is_made_of_what_the_request_has() {
        let peer = Some("203.0.113.7".parse().unwrap());
        let find = |parts: &[KeyPart], lines: &[(&'static str, &str)]| {
            let rule = KeyRule::of(parts.to_vec()).unwrap();
            rule.find(&ClientAddress::peer(), peer, &headers(lines)).map_err(ToString::to_string)
        };
        let key = ("x-api-key", "secret");
        assert_eq!(find(&[KeyPart::Address], &[]).unwrap(), "203.0.113.7");
        assert_eq!(find(&[header("x-api-key")], &[key]).unwrap(), "secret");
        assert_eq!(
            find(&[header("x-api-key"), KeyPart::Address], &[key]).unwrap(),
            "6:secret,11:203.0.113.7"
        );
        assert_eq!(find(&[KeyPart::Address, header("x-api-key")], &[]), Err("header x-api-key".to_owned()));
        for lines in [&[key, key][..], &[("x-api-key", "")], &[("x-api-key", "größe")]] {
            assert!(find(&[header("x-api-key")], lines).is_err(), "{lines:?}");
        }
        assert_eq!(KeyRule::of(Vec::new()), None);
        let nobody = KeyRule::address();
        assert_eq!(nobody.find(&ClientAddress::peer(), None, &HeaderMap::new()), Err(&KeyPart::Address));
    }

    #[test]
    fn what_is_too_long_for_a_key_is_hashed() {
        let long = "x".repeat(MAX_KEY_BYTES);
        let longer = format!("{long}x");
        let find = |parts: &[&'static str], value: &str| {
            let rule = KeyRule::of(parts.iter().map(|name| header(name)).collect()).unwrap();
            let lines: Vec<_> = parts.iter().map(|name| (*name, value)).collect();
            rule.find(&ClientAddress::peer(), None, &headers(&lines)).unwrap()
        };
        assert_eq!(find(&["x-a"], &long), long);
        let keys =
            [find(&["x-a"], &longer), find(&["x-a"], &format!("{long}y")), find(&["x-a", "x-b"], &long)];
        assert!(keys.iter().all(|key| key.starts_with('…') && key.len() < 80), "{keys:?}");
        assert!(keys[0] != keys[1] && keys[0] != keys[2], "{keys:?}");
        assert_eq!(find(&["x-a"], &longer), keys[0]);
    }

    #[test]
    fn parts_cannot_run_into_each_other() {
        let rule = KeyRule::of(vec![header("x-a"), header("x-b")]).unwrap();
        let find = |a: &str, b: &str| {
            rule.find(&ClientAddress::peer(), None, &headers(&[("x-a", a), ("x-b", b)])).unwrap()
        };
        assert_ne!(find("a", "bc"), find("ab", "c"));
        assert_ne!(find("1:a,1", "b"), find("1:a", "1,1:b"));
    }
}
