//! An address to listen on.

use std::fmt;
use std::str::FromStr;

/// A host or IP address and a port: `127.0.0.1:8080`, `[::1]:8080`, `localhost:0`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address(String);

impl Address {
    /// The text, as a socket is bound to it.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Default for Address {
    fn default() -> Self {
        Self("127.0.0.1:8080".to_owned())
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

/// Where a protocol is served that need not be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listen {
    /// Nowhere.
    Off,
    /// There.
    At(Address),
}

impl FromStr for Listen {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "off" {
            return Ok(Self::Off);
        }
        text.parse().map(Self::At).map_err(|error| format!("{error}, or off"))
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.write_str("off"),
            Self::At(address) => address.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_and_a_port_are_needed() {
        for text in ["127.0.0.1:0", "localhost:8080", "[::1]:65535", "0.0.0.0:80"] {
            assert_eq!(text.parse::<Address>().unwrap().as_str(), text);
        }
        for text in ["", "8080", ":8080", "127.0.0.1", "127.0.0.1:", "a:65536", "a:+1", "::1:8080", "a:-1"] {
            assert!(text.parse::<Address>().unwrap_err().contains("HOST:PORT"), "{text}");
        }
    }
}
