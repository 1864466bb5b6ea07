//! Which store: `memory:`, or `memory`, because YAML takes a bare `memory:` for a mapping.

use std::fmt;
use std::str::FromStr;

/// Where counts are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StoreUrl {
    /// In the memory of the process.
    #[default]
    Memory,
}

const LATER: [&str; 6] = ["redis", "rediss", "redis+cluster", "redis+sentinel", "postgres", "postgresql"];

impl FromStr for StoreUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if matches!(text, "memory:" | "memory") {
            return Ok(Self::Memory);
        }
        // Only the scheme is repeated: the rest may hold a password.
        let scheme = text.split_once(':').map_or(text, |(scheme, _)| scheme);
        if LATER.contains(&scheme) {
            return Err(format!("{scheme} stores come in a later version; this one has memory: only"));
        }
        Err("not a store; write memory:".to_owned())
    }
}

impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory => f.write_str("memory:"),
        }
    }
}
