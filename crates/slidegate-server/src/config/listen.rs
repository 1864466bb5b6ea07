//! Where a protocol is served, if at all.

use std::fmt;
use std::str::FromStr;

use super::address::Address;
use super::kinds::Parsed;

/// What a field takes that is one.
pub(super) const LISTEN: Parsed<Listen> = Parsed::new("an address or off", "^(off|.+:[0-9]{1,5})$");

/// An address, or nowhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listen {
    /// Not served.
    Off,
    /// Served there.
    At(Address),
}

impl Listen {
    /// Where gRPC is served unless told otherwise.
    pub fn grpc() -> Self {
        Self::At(Address::local(8081))
    }

    /// Where those who look after the service are served unless told otherwise.
    pub fn admin() -> Self {
        Self::At(Address::local(8082))
    }

    /// The address, if there is one.
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
