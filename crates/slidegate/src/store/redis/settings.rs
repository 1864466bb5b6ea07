//! How a Redis store is set up.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::RedisStore;
use super::invalidation::Subscriber;
use super::key::{KeyStyle, Names};
use super::shared_document::DocumentLink;
use super::url::{Topology, Url, UrlError, wrong_option};
use crate::clock::Clock;
use crate::error::StoreError;

const DEFAULT_PREFIX: &str = "sg";
const DEFAULT_BUDGET: Duration = Duration::from_millis(100);
/// A connection may take longer than a call: there is a handshake, perhaps with TLS, perhaps by way of a sentinel.
const LEAST_CONNECT_BUDGET: Duration = Duration::from_secs(1);
const DEFAULT_MAX_WAITING: usize = 8192;
const OPTIONS: &str =
    "prefix, secret, keys, budget_ms, ca, cert, key, database, sentinel_user, sentinel_password";

/// Sets up a [`RedisStore`].
#[derive(Clone)]
pub struct RedisStoreBuilder {
    pub(super) url: Url,
    prefix: String,
    secret: Option<String>,
    key_style: KeyStyle,
    pub(super) budget: Duration,
    pub(super) max_waiting: usize,
    pub(super) ca_pem: Option<Vec<u8>>,
    pub(super) client_cert_pem: Option<Vec<u8>>,
    pub(super) client_key_pem: Option<Vec<u8>>,
    pub(super) sentinel_user: Option<String>,
    pub(super) sentinel_password: Option<String>,
    pub(super) given_time: Option<Arc<dyn Clock>>,
}

/// Without passwords and secrets.
impl fmt::Debug for RedisStoreBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStoreBuilder")
            .field("url", &self.url)
            .field("prefix", &self.prefix)
            .field("budget", &self.budget)
            .finish_non_exhaustive()
    }
}

impl RedisStoreBuilder {
    pub(super) fn parse(url: &str) -> Result<Self, UrlError> {
        let url = Url::parse(url)?;
        let mut builder = Self {
            prefix: DEFAULT_PREFIX.to_owned(),
            secret: None,
            key_style: KeyStyle::default(),
            budget: DEFAULT_BUDGET,
            max_waiting: DEFAULT_MAX_WAITING,
            ca_pem: None,
            client_cert_pem: None,
            client_key_pem: None,
            sentinel_user: None,
            sentinel_password: None,
            given_time: None,
            url,
        };
        for (name, value) in std::mem::take(&mut builder.url.options) {
            builder = builder.option(&name, &value)?;
        }
        match (&builder.client_cert_pem, &builder.client_key_pem) {
            (Some(_), None) => Err(wrong_option("key", "it is missing; it goes with cert")),
            (None, Some(_)) => Err(wrong_option("cert", "it is missing; it goes with key")),
            _ => Ok(builder),
        }
    }

    fn option(self, name: &str, value: &str) -> Result<Self, UrlError> {
        match name {
            "prefix" => self.prefix(value),
            "secret" if value.is_empty() => Err(wrong_option(name, "it is empty")),
            "secret" => Ok(self.secret(value)),
            "keys" => match value {
                "hashed" => Ok(self.key_style(KeyStyle::Hashed)),
                "plain" => Ok(self.key_style(KeyStyle::Plain)),
                _ => Err(wrong_option(name, format_args!("{value:?} is not one of hashed, plain"))),
            },
            "budget_ms" => match value.parse() {
                Ok(ms @ 1..=60_000) => Ok(self.budget(Duration::from_millis(ms))),
                _ => Err(wrong_option(name, format_args!("{value:?} is not between 1 and 60000"))),
            },
            "ca" | "cert" | "key" if !self.url.is_tls => Err(wrong_option(
                name,
                "nothing is encrypted by this scheme; write rediss://, with an s at the end",
            )),
            "ca" | "cert" | "key" => {
                let pem = std::fs::read(value)
                    .map_err(|error| wrong_option(name, format_args!("cannot read {value:?}: {error}")))?;
                Ok(match name {
                    "ca" => self.ca_certificate(pem),
                    "cert" => Self { client_cert_pem: Some(pem), ..self },
                    _ => Self { client_key_pem: Some(pem), ..self },
                })
            }
            "database" if !matches!(self.url.topology, Topology::Unix(_)) => Err(wrong_option(
                name,
                "it is an option for sockets; elsewhere it stands behind the host, as in redis://host/2",
            )),
            "database" => match value.parse() {
                Ok(number @ 0..) => Ok(Self { url: Url { database: number, ..self.url }, ..self }),
                _ => Err(wrong_option(name, format_args!("{value:?} is not a number"))),
            },
            "sentinel_user" | "sentinel_password"
                if !matches!(self.url.topology, Topology::Sentinel { .. }) =>
            {
                Err(wrong_option(name, "there are no sentinels; write redis+sentinel://"))
            }
            "sentinel_user" => Ok(Self { sentinel_user: Some(value.to_owned()), ..self }),
            "sentinel_password" => Ok(Self { sentinel_password: Some(value.to_owned()), ..self }),
            _ => Err(wrong_option(name, format_args!("there is no such option; allowed are {OPTIONS}"))),
        }
    }

    /// What all keys begin with, `sg` unless set. An application that shares a server with others has its own.
    pub fn prefix(mut self, prefix: &str) -> Result<Self, UrlError> {
        let is_fine = |c: char| c.is_ascii_graphic() && !matches!(c, '{' | '}');
        if prefix.is_empty() || prefix.len() > 64 || !prefix.chars().all(is_fine) {
            let why = format!("{prefix:?} is not 1 to 64 visible ASCII characters without braces");
            return Err(wrong_option("prefix", why));
        }
        prefix.clone_into(&mut self.prefix);
        Ok(self)
    }

    /// Keys the hash by which identifiers are stored. All callers that share a limit share the secret. Without one,
    /// whoever can list the server's keys can test guesses at who is among them.
    pub fn secret(mut self, secret: &str) -> Self {
        self.secret = Some(secret.to_owned());
        self
    }

    /// How identifiers are written into the server.
    pub fn key_style(mut self, style: KeyStyle) -> Self {
        self.key_style = style;
        self
    }

    /// How long a call may take altogether, 100 ms unless set.
    pub fn budget(mut self, budget: Duration) -> Self {
        self.budget = budget;
        self
    }

    /// How many calls may wait for their turn, 8192 unless set. One more is refused at once.
    pub fn max_waiting(mut self, max_waiting: usize) -> Self {
        self.max_waiting = max_waiting.max(1);
        self
    }

    /// The certificate authority, as PEM, that vouches for the servers, in place of the system's.
    pub fn ca_certificate(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.ca_pem = Some(pem.into());
        self
    }

    /// The certificate by which servers know their clients, and its key, as PEM.
    pub fn client_certificate(mut self, cert_pem: impl Into<Vec<u8>>, key_pem: impl Into<Vec<u8>>) -> Self {
        (self.client_cert_pem, self.client_key_pem) = (Some(cert_pem.into()), Some(key_pem.into()));
        self
    }

    /// Decides by this clock in place of the server's. For tests: callers whose clocks differ would no longer share
    /// one limit. Records then live an hour longer than they must, as the server cannot know how fast this clock goes.
    pub fn time_from(mut self, clock: impl Clock) -> Self {
        self.given_time = Some(Arc::new(clock));
        self
    }

    /// Connects. Fails if that fails; later, connections that break are made anew in the background.
    pub async fn connect(self) -> Result<RedisStore, StoreError> {
        let store = self.connect_lazily();
        store.ready().await?;
        Ok(store)
    }

    /// Connects in the background. Must be called within a tokio runtime. Until there is a connection, calls wait
    /// for it as long as their budget lasts, or fail at once if the last attempt has failed.
    pub fn connect_lazily(self) -> RedisStore {
        RedisStore::start(self)
    }

    pub(super) fn names(&self) -> Names {
        Names::new(&self.prefix, self.secret.as_deref(), self.key_style)
    }

    pub(super) fn document(&self) -> DocumentLink {
        DocumentLink::new(&self.prefix)
    }

    pub(super) fn subscriber(&self) -> Subscriber {
        Subscriber::new(&self.prefix)
    }

    pub(super) fn connect_budget(&self) -> Duration {
        self.budget.max(LEAST_CONNECT_BUDGET)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_that_are_wrong_are_named() {
        let refusal = |url: &str| RedisStoreBuilder::parse(url).unwrap_err().to_string();
        assert!(
            refusal("redis://a?prefx=b")
                .starts_with("store: prefx: there is no such option; allowed are prefix,")
        );
        assert!(refusal("redis://a?prefix=%7B").starts_with("store: prefix: \"{\" is not 1 to 64 visible"));
        assert!(
            refusal("redis://a?budget_ms=0")
                .starts_with("store: budget_ms: \"0\" is not between 1 and 60000")
        );
        assert!(
            refusal("redis://a?keys=odd").starts_with("store: keys: \"odd\" is not one of hashed, plain")
        );
        assert!(refusal("rediss://a?ca=/nowhere").starts_with("store: ca: cannot read \"/nowhere\""));
        for url in ["redis://a", "redis+cluster://a", "redis+sentinel://a/b"] {
            let refused = refusal(&format!("{url}?ca=/nowhere"));
            assert!(!refused.contains("nowhere") && refused.contains("nothing is encrypted"), "{refused}");
        }
        assert!(refusal("redis://a?secret=").starts_with("store: secret: it is empty"));
        assert!(refusal("redis://a?sentinel_user=b").starts_with("store: sentinel_user: there are no"));
        assert!(refusal("redis://a?database=2").starts_with("store: database: it is an option for sockets"));
        assert!(refusal("redis+unix:///a?database=x").starts_with("store: database: \"x\" is not a number"));
        assert!(refusal("redis://a?cert=/nowhere").starts_with("store: cert: nothing is encrypted"));
    }
}
