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
    Transient { message: String },
    Permanent { message: String },
}

impl StoreError {
    pub(crate) fn full(what: &'static str) -> Self {
        Self { kind: Kind::Full { what } }
    }

    /// The store failed in a way that may pass: it is away, busy, or too slow.
    pub fn transient(message: impl Into<String>) -> Self {
        Self { kind: Kind::Transient { message: message.into() } }
    }

    /// The store failed in a way that will not pass by itself: it refuses the credentials, or the schema is wrong.
    pub fn permanent(message: impl Into<String>) -> Self {
        Self { kind: Kind::Permanent { message: message.into() } }
    }

    /// Whether the store has no room for another key or for more of this one.
    pub fn is_full(&self) -> bool {
        matches!(self.kind, Kind::Full { .. })
    }

    /// Whether the same request may succeed later.
    pub fn is_transient(&self) -> bool {
        match self.kind {
            Kind::Full { .. } | Kind::Transient { .. } => true,
            Kind::Permanent { .. } => false,
        }
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kind {
            Kind::Full { what } => write!(f, "the memory store is full: {what}"),
            Kind::Transient { message } | Kind::Permanent { message } => f.write_str(message),
        }
    }
}

impl std::error::Error for StoreError {}
