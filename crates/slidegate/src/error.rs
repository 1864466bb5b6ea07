//! What can go wrong in a store. A denial is not among it.

use std::fmt;

/// A store could not decide.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreError {
    kind: Kind,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Kind {
    Full { what: &'static str },
}

impl StoreError {
    pub(crate) fn full(what: &'static str) -> Self {
        Self { kind: Kind::Full { what } }
    }

    /// Whether the store has no room for another key or for more of this one.
    pub fn is_full(&self) -> bool {
        matches!(self.kind, Kind::Full { .. })
    }

    /// Whether the same request may succeed later.
    pub fn is_transient(&self) -> bool {
        match self.kind {
            Kind::Full { .. } => true,
        }
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            Kind::Full { what } => write!(f, "the memory store is full: {what}"),
        }
    }
}

impl std::error::Error for StoreError {}
