//! Addresses of listeners that can be switched off.

use std::fmt;
use std::str::FromStr;

use crate::fields::scalars::Parsed;
use crate::sections::address::Address;

/// Kind of a field with such an address.
pub(crate) const LISTEN: Parsed<Listen> = Parsed::new("an address or off", "^(off|.+:[0-9]{1,5})$");

/// Listening address of a protocol, or `off`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listen {
    /// The protocol is not served.
    Off,
    /// The protocol is served at this address.
    At(Address),
}

impl Listen {
    /// Default address of the gRPC listener.
    pub fn grpc() -> Self {
        Self::At(Address::local(8081))
    }

    /// Default address of the admin listener.
    pub fn admin() -> Self {
        Self::At(Address::local(8082))
    }

    /// Returns the address; `None` for `off`.
    pub fn address(&self) -> Option<&Address> {
        match self {
            Self::Off => None,
            Self::At(address) => Some(address),
        }
    }
}

impl FromStr for Listen {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "off" {
            return Ok(Self::Off);
        }
        text.parse().map(Self::At).map_err(|message| format!("{message}, or off"))
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
