//! What can go wrong in a store. A denial is not among it.

use std::borrow::Cow;
use std::fmt;

/// A store could not decide, or its decision did not arrive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreError {
    kind: Kind,
    may_have_counted: bool,
    is_late: bool,
    message: Cow<'static, str>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Full,
    Transient,
    Permanent,
}

impl StoreError {
    /// The store has no room for another key or for more of this one.
    pub fn full(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(Kind::Full, message)
    }

    /// The store failed in a way that may pass: it is away, busy, or too slow. Nothing was spent.
    pub fn transient(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(Kind::Transient, message)
    }

    /// The request went out and its answer did not arrive, so that nobody here knows whether it was counted.
    pub fn lost(message: impl Into<Cow<'static, str>>) -> Self {
        Self::transient(message).perhaps_counted()
    }

    /// The store failed in a way that will not pass by itself: it refuses the credentials, or the schema is wrong.
    pub fn permanent(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(Kind::Permanent, message)
    }

    /// The same error, of a request that may have been counted nevertheless.
    pub fn perhaps_counted(mut self) -> Self {
        self.may_have_counted = true;
        self
    }

    /// The same error, for want of time.
    pub fn too_late(mut self) -> Self {
        self.is_late = true;
        self
    }

    fn new(kind: Kind, message: impl Into<Cow<'static, str>>) -> Self {
        Self { kind, may_have_counted: false, is_late: false, message: message.into() }
    }

    /// Whether the store has no room for another key or for more of this one.
    pub fn is_full(&self) -> bool {
        self.kind == Kind::Full
    }

    /// Whether the same request may succeed later.
    pub fn is_transient(&self) -> bool {
        self.kind != Kind::Permanent
    }

    /// Whether the answer did not come in time.
    pub fn is_late(&self) -> bool {
        self.is_late
    }

    /// Whether the request may have been counted although no answer came. A store never sends such a request again:
    /// it would count twice.
    pub fn may_have_counted(&self) -> bool {
        self.may_have_counted
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for StoreError {}
