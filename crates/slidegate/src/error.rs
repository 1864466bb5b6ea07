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

    /// Every name that [`kind`](Self::kind) gives.
    pub const KINDS: [&str; 5] = ["full", "permanent", "too-late", "lost", "transient"];

    /// What kind of failure it is, as metrics call it: `full`, `permanent`, or of those that may pass `too-late` (no answer
    /// in time), `lost` (it may have been counted) or `transient`.
    pub fn kind(&self) -> &'static str {
        let [full, permanent, too_late, lost, transient] = Self::KINDS;
        match self.kind {
            Kind::Full => full,
            Kind::Permanent => permanent,
            Kind::Transient if self.is_late => too_late,
            Kind::Transient if self.may_have_counted => lost,
            Kind::Transient => transient,
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_has_a_name_of_its_own() {
        let errors = [
            StoreError::full("").perhaps_counted(),
            StoreError::permanent("").perhaps_counted(),
            StoreError::lost("").too_late(),
            StoreError::lost(""),
            StoreError::transient(""),
        ];
        assert_eq!(errors.each_ref().map(StoreError::kind), StoreError::KINDS);
        assert_eq!(StoreError::transient("").too_late().kind(), "too-late");
    }
}
