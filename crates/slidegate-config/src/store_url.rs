//! Store URLs: `memory:`, `redis://…` and related schemes, `postgres://…`.

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::str::FromStr;
use std::sync::LazyLock;
use std::time::Duration;

use slidegate::{PostgresStore, PostgresStoreBuilder, RedisStore, RedisStoreBuilder};

/// Location of the counts. Displayed without users, passwords and options, which may be secret.
#[derive(Clone, Debug, Default)]
pub enum StoreUrl {
    /// In the memory of the process.
    #[default]
    Memory,
    /// In Redis or Valkey.
    Redis(Box<RedisUrl>),
    /// In PostgreSQL.
    Postgres(Box<PostgresUrl>),
}

/// A valid URL of a Redis store.
#[derive(Clone, Debug)]
pub struct RedisUrl {
    builder: RedisStoreBuilder,
    budget: Option<Duration>,
    /// URL without secrets.
    redacted: String,
    /// Identifies the URL without storing its secrets.
    fingerprint: u64,
}

/// A valid URL of a PostgreSQL store.
#[derive(Clone, Debug)]
pub struct PostgresUrl {
    builder: PostgresStoreBuilder,
    budget: Option<Duration>,
    /// URL without secrets.
    redacted: String,
    /// Identifies the URL without storing its secrets.
    fingerprint: u64,
}

const ALLOWED: &str = "memory:, redis://HOST:PORT, rediss://HOST:PORT for TLS, redis+unix:///PATH, \
                       redis+sentinel://HOSTS/NAME, redis+cluster://HOSTS or postgres://HOST:PORT/DATABASE";

impl RedisUrl {
    /// Returns the builder of the store.
    pub fn builder(&self) -> RedisStoreBuilder {
        self.builder.clone()
    }
}

impl PostgresUrl {
    /// Returns the builder of the store.
    pub fn builder(&self) -> PostgresStoreBuilder {
        self.builder.clone()
    }
}

impl StoreUrl {
    /// Returns the time that a call may take, if the URL sets it.
    pub fn budget(&self) -> Option<Duration> {
        match self {
            Self::Memory => None,
            Self::Redis(url) => url.budget,
            Self::Postgres(url) => url.budget,
        }
    }
}

impl PartialEq for StoreUrl {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Memory, Self::Memory) => true,
            (Self::Redis(one), Self::Redis(other)) => one.fingerprint == other.fingerprint,
            (Self::Postgres(one), Self::Postgres(other)) => one.fingerprint == other.fingerprint,
            _ => false,
        }
    }
}

/// Hashes a URL, with a seed that changes with each process.
fn fingerprint(url: &str) -> u64 {
    static SEED: LazyLock<RandomState> = LazyLock::new(RandomState::new);
    SEED.hash_one(url)
}

/// Returns the value of `budget_ms` in a valid URL.
fn budget(url: &str) -> Option<Duration> {
    let (_, options) = url.split_once('?')?;
    let ms = options.split('&').find_map(|option| option.strip_prefix("budget_ms="))?;
    ms.parse().ok().map(Duration::from_millis)
}

impl FromStr for StoreUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // Messages contain the scheme only, because the rest may contain a password.
        let scheme = text.split_once(':').map_or(text, |(scheme, _)| scheme);
        let family = scheme.split_once('+').map_or(scheme, |(family, _)| family);
        match family {
            // The colon is optional, because YAML parses a bare `memory:` as a mapping.
            "memory" if matches!(text, "memory:" | "memory") => Ok(Self::Memory),
            _ if !text.contains("://") => Err(format!("not a store; write {ALLOWED}")),
            "redis" | "rediss" | "valkey" | "valkeys" => match RedisStore::builder(text) {
                Ok(builder) => Ok(Self::Redis(Box::new(RedisUrl {
                    builder,
                    budget: budget(text),
                    redacted: redacted(text),
                    fingerprint: fingerprint(text),
                }))),
                Err(error) => Err(message(&error)),
            },
            "postgres" | "postgresql" => match PostgresStore::builder(text) {
                Ok(builder) => Ok(Self::Postgres(Box::new(PostgresUrl {
                    builder,
                    budget: budget(text),
                    redacted: redacted(text),
                    fingerprint: fingerprint(text),
                }))),
                Err(error) => Err(message(&error)),
            },
            _ => Err(format!("not a store; write {ALLOWED}")),
        }
    }
}

/// Returns the message of an error without the prefix `store: `, which the caller adds.
fn message(error: &impl fmt::Display) -> String {
    let message = error.to_string();
    message.strip_prefix("store: ").unwrap_or(&message).to_owned()
}

/// Removes the user, the password and the options from a valid URL.
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
            Self::Redis(url) => f.write_str(&url.redacted),
            Self::Postgres(url) => f.write_str(&url.redacted),
        }
    }
}

#[cfg(test)]
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
        let rejection = |text: &str| text.parse::<StoreUrl>().unwrap_err();
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
        let message = rejection("postgres://:hush@a:hush/b");
        assert!(message.starts_with("url: ") && !message.contains("hush"), "{message}");
        assert!(rejection("redis+ring://a").starts_with("the scheme \"redis+ring\" is unknown; allowed"));
        assert!(rejection("redis://a?prefx=b").starts_with("prefx: there is no such option; allowed are"));
    }
}
