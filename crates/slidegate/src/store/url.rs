//! Store URLs: `memory:`, `redis://…` and related schemes, `postgres://…`.

use std::fmt;
#[cfg(any(feature = "redis", feature = "postgres"))]
use std::hash::{BuildHasher, RandomState};
use std::str::FromStr;
#[cfg(any(feature = "redis", feature = "postgres"))]
use std::sync::LazyLock;
use std::time::Duration;

use crate::error::SettingsError;
#[cfg(feature = "postgres")]
use crate::store::{PostgresStore, PostgresStoreBuilder};
#[cfg(feature = "redis")]
use crate::store::{RedisStore, RedisStoreBuilder};

/// Location of the counts. Displayed without users, passwords and options, which may be secret.
///
/// ```
/// use slidegate::store::StoreUrl;
///
/// assert_eq!("memory:".parse::<StoreUrl>()?, StoreUrl::Memory);
/// let error = "disk".parse::<StoreUrl>().unwrap_err();
/// assert!(error.message().starts_with("not a store; write memory:, redis://HOST:PORT, "));
/// # Ok::<(), slidegate::SettingsError>(())
/// ```
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub enum StoreUrl {
    /// In the memory of the process.
    #[default]
    Memory,
    /// In Redis or Valkey.
    #[cfg(feature = "redis")]
    Redis(Box<RemoteUrl<RedisStoreBuilder>>),
    /// In PostgreSQL.
    #[cfg(feature = "postgres")]
    Postgres(Box<RemoteUrl<PostgresStoreBuilder>>),
}

/// A valid URL of a remote store, with the builder `B` of the store.
#[cfg(any(feature = "redis", feature = "postgres"))]
#[derive(Clone, Debug)]
pub struct RemoteUrl<B> {
    builder: B,
    /// URL without secrets.
    redacted: String,
    /// Identifies the URL without storing its secrets.
    fingerprint: u64,
}

const ALLOWED: &str = "memory:, redis://HOST:PORT, rediss://HOST:PORT for TLS, redis+unix:///PATH, \
                       redis+sentinel://HOSTS/NAME, redis+cluster://HOSTS or postgres://HOST:PORT/DATABASE";

#[cfg(any(feature = "redis", feature = "postgres"))]
impl<B: Clone> RemoteUrl<B> {
    fn new(url: &str, builder: B) -> Self {
        Self { builder, redacted: redacted(url), fingerprint: fingerprint(url) }
    }

    /// Returns the builder of the store.
    pub fn builder(&self) -> B {
        self.builder.clone()
    }
}

impl StoreUrl {
    /// Returns the time that a call may take, if the URL sets it.
    pub fn budget(&self) -> Option<Duration> {
        match self {
            Self::Memory => None,
            #[cfg(feature = "redis")]
            Self::Redis(url) => url.builder.remote.own_budget,
            #[cfg(feature = "postgres")]
            Self::Postgres(url) => url.builder.remote.own_budget,
        }
    }

    #[cfg(feature = "redis")]
    fn redis(url: &str) -> Result<Self, SettingsError> {
        Ok(Self::Redis(Box::new(RemoteUrl::new(url, RedisStore::builder(url)?))))
    }

    #[cfg(not(feature = "redis"))]
    fn redis(_: &str) -> Result<Self, SettingsError> {
        Err(missing_feature("redis"))
    }

    #[cfg(feature = "postgres")]
    fn postgres(url: &str) -> Result<Self, SettingsError> {
        Ok(Self::Postgres(Box::new(RemoteUrl::new(url, PostgresStore::builder(url)?))))
    }

    #[cfg(not(feature = "postgres"))]
    fn postgres(_: &str) -> Result<Self, SettingsError> {
        Err(missing_feature("postgres"))
    }
}

#[cfg(not(all(feature = "redis", feature = "postgres")))]
fn missing_feature(feature: &str) -> SettingsError {
    let message =
        format!("this build has no {feature} store; enable the feature `{feature}` of the crate slidegate");
    SettingsError::url(message)
}

impl PartialEq for StoreUrl {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Memory, Self::Memory) => true,
            #[cfg(feature = "redis")]
            (Self::Redis(one), Self::Redis(other)) => one.fingerprint == other.fingerprint,
            #[cfg(feature = "postgres")]
            (Self::Postgres(one), Self::Postgres(other)) => one.fingerprint == other.fingerprint,
            #[cfg(any(feature = "redis", feature = "postgres"))]
            _ => false,
        }
    }
}

/// Hashes a URL, with a seed that changes with each process.
#[cfg(any(feature = "redis", feature = "postgres"))]
fn fingerprint(url: &str) -> u64 {
    static SEED: LazyLock<RandomState> = LazyLock::new(RandomState::new);
    SEED.hash_one(url)
}

impl FromStr for StoreUrl {
    type Err = SettingsError;

    fn from_str(text: &str) -> Result<Self, SettingsError> {
        // Messages contain the scheme only, because the rest may contain a password.
        let scheme = text.split_once(':').map_or(text, |(scheme, _)| scheme);
        let family = scheme.split_once('+').map_or(scheme, |(family, _)| family);
        match family {
            // The colon is optional, because YAML parses a bare `memory:` as a mapping.
            "memory" if matches!(text, "memory:" | "memory") => Ok(Self::Memory),
            "redis" | "rediss" | "valkey" | "valkeys" if text.contains("://") => Self::redis(text),
            "postgres" | "postgresql" if text.contains("://") => Self::postgres(text),
            _ => Err(SettingsError::url(format_args!("not a store; write {ALLOWED}"))),
        }
    }
}

/// Removes the user, the password and the options from a valid URL.
#[cfg(any(feature = "redis", feature = "postgres"))]
fn redacted(url: &str) -> String {
    let without_options = url.split_once('?').map_or(url, |(before, _)| before);
    let (scheme, rest) = without_options.split_once("://").unwrap_or((without_options, ""));
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let hosts = authority.rsplit_once('@').map_or(authority, |(_user, hosts)| hosts);
    format!("{scheme}://{hosts}{path}")
}

impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory => f.write_str("memory:"),
            #[cfg(feature = "redis")]
            Self::Redis(url) => f.write_str(&url.redacted),
            #[cfg(feature = "postgres")]
            Self::Postgres(url) => f.write_str(&url.redacted),
        }
    }
}

#[cfg(test)]
#[cfg(all(feature = "redis", feature = "postgres"))]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_displayed_without_its_secrets() {
        let table = [
            ("memory", "memory:"),
            ("memory:", "memory:"),
            ("redis://cache", "redis://cache"),
            ("valkey://hush:hush@cache:7000/3?prefix=a", "valkey://cache:7000/3"),
            ("rediss://:hush@[::1]?secret=hush", "rediss://[::1]"),
            ("redis+unix:///run/a@b.sock?secret=hush", "redis+unix:///run/a@b.sock"),
            ("redis+unix://:hush@/run/a.sock", "redis+unix:///run/a.sock"),
            (
                "redis+sentinel://:hush@a:1,b:2/main/1?sentinel_password=hush",
                "redis+sentinel://a:1,b:2/main/1",
            ),
            ("valkeys+cluster://me:hu%40sh@a,b,c", "valkeys+cluster://a,b,c"),
            ("postgres://hush:hush@a:1,b:2/app?secret=hush&password=hush", "postgres://a:1,b:2/app"),
            ("postgresql://a", "postgresql://a"),
        ];
        for (text, shown) in table {
            let url: StoreUrl = text.parse().unwrap();
            assert_eq!(url.to_string(), shown);
            assert!(!format!("{url:?}").contains("hush"), "{url:?}");
        }
    }

    #[test]
    fn an_invalid_url_is_rejected_with_the_valid_forms() {
        let rejection = |text: &str| text.parse::<StoreUrl>().unwrap_err().to_string();
        for text in [
            "",
            "disk",
            "memory:x",
            "memory+redis://a",
            "http://:hush@a",
            "cache:6379",
            "redis",
            "redis:hush@a",
            "postgres",
        ] {
            assert_eq!(rejection(text), format!("not a store; write {ALLOWED}"), "{text}");
        }
        assert!(
            rejection("postgres://:hush@a?schema=A").starts_with("schema: \"A\" is not 1 to 63 lower-case")
        );
        assert!(rejection("postgres://:hush@a?sync=hush!").starts_with("sync: "));
        let rejected = rejection("postgres://:hush@a:hush/b");
        assert!(rejected.contains("; the form is postgres://") && !rejected.contains("hush"), "{rejected}");
        assert!(rejection("redis+ring://a").starts_with("the scheme \"redis+ring\" is unknown; allowed"));
        assert!(rejection("redis://a?prefx=b").starts_with("prefx: there is no such option; allowed are"));
    }
}

#[cfg(test)]
#[cfg(not(any(feature = "redis", feature = "postgres")))]
mod tests_without_features {
    use super::*;

    #[test]
    fn a_store_that_is_not_compiled_in_names_its_feature() {
        for (url, feature) in [("redis://:hush@a", "redis"), ("postgres://:hush@a/b", "postgres")] {
            let error = url.parse::<StoreUrl>().unwrap_err().to_string();
            assert!(
                error.contains(&format!("enable the feature `{feature}`")) && !error.contains("hush"),
                "{error}"
            );
        }
        assert_eq!("memory:".parse(), Ok(StoreUrl::Memory));
    }
}
