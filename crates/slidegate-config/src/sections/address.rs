//! Listening addresses.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// A host or IP address and a port: `127.0.0.1:8080`, `[::1]:8080`, `localhost:0`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address(String);

impl Address {
    /// Returns the text that a socket is bound to.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    pub(crate) fn local(port: u16) -> Self {
        Self(format!("127.0.0.1:{port}"))
    }

    /// Returns whether only this machine can reach the address.
    pub fn is_loopback(&self) -> bool {
        let host = self.0.rsplit_once(':').map_or("", |(host, _port)| host);
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        let is_loopback = |address: IpAddr| address.to_canonical().is_loopback();
        host == "localhost" || bare.parse().is_ok_and(is_loopback)
    }
}

impl Default for Address {
    fn default() -> Self {
        Self::local(8080)
    }
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let is_valid = text.rsplit_once(':').is_some_and(|(host, port)| {
            let is_bracketed = host.starts_with('[') && host.ends_with(']');
            let is_host = !host.is_empty() && (is_bracketed || !host.contains(':'));
            is_host && port.bytes().all(|byte| byte.is_ascii_digit()) && port.parse::<u16>().is_ok()
        });
        if is_valid {
            return Ok(Self(text.to_owned()));
        }
        Err(format!("{text:?} is not an address: write HOST:PORT, such as 127.0.0.1:8080 or [::1]:8080"))
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_addresses_are_recognized() {
        for (text, expected) in [
            ("127.0.0.1:1", true),
            ("127.8.0.1:1", true),
            ("[::1]:1", true),
            ("[::ffff:127.0.0.1]:1", true),
            ("localhost:1", true),
            ("0.0.0.0:1", false),
            ("[::]:1", false),
            ("192.0.2.1:1", false),
            ("localhost.example:1", false),
        ] {
            assert_eq!(text.parse::<Address>().unwrap().is_loopback(), expected, "{text}");
        }
    }

    #[test]
    fn an_address_needs_a_host_and_a_port() {
        for text in ["127.0.0.1:0", "localhost:8080", "[::1]:65535", "0.0.0.0:80"] {
            assert_eq!(text.parse::<Address>().unwrap().as_str(), text);
        }
        for text in ["", "8080", ":8080", "127.0.0.1", "127.0.0.1:", "a:65536", "a:+1", "::1:8080", "a:-1"] {
            assert!(text.parse::<Address>().unwrap_err().contains("HOST:PORT"), "{text}");
        }
    }
}
