//! Errors of stores and of settings. A denial is not an error.

use std::borrow::Cow;
use std::fmt;

use slidegate_core::QuotaError;

/// Failure of a store to decide, or of its decision to arrive. A limiter also returns it for a request that it cannot send
/// to the store, which [`is_usage`](Self::is_usage) reports.
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
    Usage,
}

impl StoreError {
    /// Creates the error of a full store, which cannot hold another key, or more data of this key.
    pub fn full(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(Kind::Full, message)
    }

    /// Creates an error for a temporary failure: the store is unreachable, busy or too slow. Nothing was spent.
    pub fn transient(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(Kind::Transient, message)
    }

    /// Creates an error for a request without a response, which may have been counted.
    pub fn lost(message: impl Into<Cow<'static, str>>) -> Self {
        Self::transient(message).perhaps_counted()
    }

    /// Creates an error for a permanent failure: the store rejects the credentials, or its schema is wrong.
    pub fn permanent(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(Kind::Permanent, message)
    }

    /// Creates an error for a request that no store can serve because the caller made a mistake, such as an unknown tier.
    /// The request did not reach the store.
    pub fn usage(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(Kind::Usage, message)
    }

    /// Marks the error's request as possibly counted.
    pub fn perhaps_counted(mut self) -> Self {
        self.may_have_counted = true;
        self
    }

    /// Marks the error as caused by a timeout.
    pub fn too_late(mut self) -> Self {
        self.is_late = true;
        self
    }

    fn new(kind: Kind, message: impl Into<Cow<'static, str>>) -> Self {
        Self { kind, may_have_counted: false, is_late: false, message: message.into() }
    }

    /// Whether the store is full: it cannot hold another key, or more data of this key.
    pub fn is_full(&self) -> bool {
        self.kind == Kind::Full
    }

    /// Whether the caller made a mistake: the request names an unknown tier, a verb with the suffix `_now` was called over a
    /// remote store, or the store does not have the function. The request did not reach the store, so the error is
    /// independent of the store's health.
    pub fn is_usage(&self) -> bool {
        self.kind == Kind::Usage
    }

    /// All names that [`kind`](Self::kind) returns for failures of a store.
    pub const KINDS: [&str; 5] = ["full", "permanent", "too-late", "lost", "transient"];

    /// Kind of the failure, as in metrics: `full`, `permanent`, or for temporary failures `too-late` (no response in
    /// time), `lost` (possibly counted) or `transient`. A mistake of the caller is not a failure of the store; it has the
    /// kind `usage`.
    pub fn kind(&self) -> &'static str {
        let [full, permanent, too_late, lost, transient] = Self::KINDS;
        match self.kind {
            Kind::Full => full,
            Kind::Permanent => permanent,
            Kind::Usage => "usage",
            Kind::Transient if self.is_late => too_late,
            Kind::Transient if self.may_have_counted => lost,
            Kind::Transient => transient,
        }
    }

    /// Whether the same request may succeed later.
    pub fn is_transient(&self) -> bool {
        matches!(self.kind, Kind::Full | Kind::Transient)
    }

    /// Whether the response did not arrive in time.
    pub fn is_late(&self) -> bool {
        self.is_late
    }

    /// Whether the request may have been counted although no response arrived. A store never resends such a request,
    /// because it would count twice.
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

/// Invalid setting of a store, a layer over a store, or a URL.
///
/// ```
/// use slidegate::store::MemoryStore;
///
/// let error = MemoryStore::builder().max_keys(0).build().unwrap_err();
/// assert_eq!((error.field(), error.message()), ("max_keys", "0 is not between 1 and 2^31"));
/// assert_eq!(error.to_string(), "max_keys: 0 is not between 1 and 2^31");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SettingsError {
    field: Cow<'static, str>,
    message: String,
}

impl SettingsError {
    pub(crate) fn new(field: impl Into<Cow<'static, str>>, message: impl fmt::Display) -> Self {
        Self { field: field.into(), message: message.to_string() }
    }

    /// Creates an error of the form of a URL. The message names the allowed forms.
    pub(crate) fn url(message: impl fmt::Display) -> Self {
        Self::new(Self::URL, message)
    }

    /// Field of an error of the form of a URL.
    const URL: &'static str = "url";

    /// Creates an error of the option called `name` in a URL.
    #[cfg(any(feature = "redis", feature = "postgres"))]
    pub(crate) fn option(name: &str, message: impl fmt::Display) -> Self {
        Self::new(name.to_owned(), message)
    }

    /// Returns the name of the setting or of the URL's option; `url` if the form of the URL is invalid.
    pub fn field(&self) -> &str {
        &self.field
    }

    /// Returns the problem and the allowed values.
    pub fn message(&self) -> &str {
        &self.message
    }
}

impl fmt::Display for SettingsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.field == Self::URL {
            return f.write_str(&self.message);
        }
        write!(f, "{}: {}", self.field, self.message)
    }
}

impl std::error::Error for SettingsError {}

/// Failure to build a limiter or a store.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BuildError {
    /// A quota, or the list of quotas of a policy, is invalid.
    Quota(QuotaError),
    /// A quota of a tier, or the list of its quotas, is invalid.
    Tier {
        /// Name of the tier.
        name: String,
        /// The error of the quotas.
        error: QuotaError,
    },
    /// A setting is invalid.
    Settings(SettingsError),
    /// The store is unreachable or rejects the connection.
    Connect {
        /// URL of the store, without users, passwords and options.
        url: String,
        /// The store's error.
        error: StoreError,
    },
}

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Quota(error) => error.fmt(f),
            Self::Tier { name, error } => write!(f, "tier {name:?}: {error}"),
            Self::Settings(error) => error.fmt(f),
            Self::Connect { url, error } => write!(f, "cannot connect to the store {url}: {error}"),
        }
    }
}

impl std::error::Error for BuildError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Quota(error) | Self::Tier { error, .. } => Some(error),
            Self::Settings(error) => Some(error),
            Self::Connect { error, .. } => Some(error),
        }
    }
}

impl From<QuotaError> for BuildError {
    fn from(error: QuotaError) -> Self {
        Self::Quota(error)
    }
}

impl From<SettingsError> for BuildError {
    fn from(error: SettingsError) -> Self {
        Self::Settings(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_has_a_distinct_name() {
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

    #[test]
    fn a_mistake_of_the_caller_is_no_failure_of_the_store() {
        let error = StoreError::usage("unknown tier");
        assert!(error.is_usage() && !error.is_transient() && !error.is_full() && !error.may_have_counted());
        assert_eq!((error.kind(), StoreError::KINDS.contains(&error.kind())), ("usage", false));
        assert!(!StoreError::permanent("").is_usage());
    }
}
