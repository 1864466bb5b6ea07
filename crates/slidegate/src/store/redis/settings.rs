//! Settings of a Redis store.

use std::fmt;
use std::time::Duration;

use super::RedisStore;
use super::invalidation::Subscriber;
use super::key::{KeyNames, KeyStyle};
use super::url::{Topology, Url};
use crate::error::{SettingsError, StoreError};
use crate::store::remote::{RemoteSettings, read_pem, remote_setters};

const DEFAULT_PREFIX: &str = "sg";
/// Smallest budget of a connection. It exceeds that of a request because of the handshakes, with TLS and a sentinel.
const MIN_CONNECT_BUDGET: Duration = Duration::from_secs(1);
const OPTIONS: [&str; 10] = [
    "prefix",
    "secret",
    "keys",
    "budget_ms",
    "ca",
    "cert",
    "key",
    "database",
    "sentinel_user",
    "sentinel_password",
];

/// Builder of a [`RedisStore`].
#[derive(Clone)]
pub struct RedisStoreBuilder {
    pub(super) url: Url,
    pub(crate) remote: RemoteSettings,
    pub(super) prefix: String,
    key_style: KeyStyle,
    pub(super) client_cert_pem: Option<Vec<u8>>,
    pub(super) client_key_pem: Option<Vec<u8>>,
    pub(super) sentinel_user: Option<String>,
    pub(super) sentinel_password: Option<String>,
}

/// Omits passwords and secrets.
impl fmt::Debug for RedisStoreBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStoreBuilder")
            .field("url", &self.url)
            .field("prefix", &self.prefix)
            .field("budget", &self.remote.budget())
            .finish_non_exhaustive()
    }
}

impl RedisStoreBuilder {
    pub(super) fn parse(url: &str) -> Result<Self, SettingsError> {
        let url = Url::parse(url)?;
        let mut builder = Self {
            remote: RemoteSettings::default(),
            prefix: DEFAULT_PREFIX.to_owned(),
            key_style: KeyStyle::default(),
            client_cert_pem: None,
            client_key_pem: None,
            sentinel_user: None,
            sentinel_password: None,
            url,
        };
        for (name, value) in std::mem::take(&mut builder.url.options) {
            builder = builder.option(&name, &value)?;
        }
        match (&builder.client_cert_pem, &builder.client_key_pem) {
            (Some(_), None) => Err(SettingsError::option("key", "it is required together with cert")),
            (None, Some(_)) => Err(SettingsError::option("cert", "it is required together with key")),
            _ => Ok(builder),
        }
    }

    fn option(mut self, name: &str, value: &str) -> Result<Self, SettingsError> {
        match name {
            "prefix" => self.prefix(value),
            "keys" => match value {
                "hashed" => Ok(self.key_style(KeyStyle::Hashed)),
                "plain" => Ok(self.key_style(KeyStyle::Plain)),
                _ => Err(SettingsError::option(name, format_args!("{value:?} is not one of hashed, plain"))),
            },
            "ca" | "cert" | "key" if !self.url.is_tls => Err(SettingsError::option(
                name,
                "the scheme of the URL does not use TLS; use rediss:// in place of redis://",
            )),
            "cert" => Ok(Self { client_cert_pem: Some(read_pem(name, value)?), ..self }),
            "key" => Ok(Self { client_key_pem: Some(read_pem(name, value)?), ..self }),
            "database" if !matches!(self.url.topology, Topology::Unix(_)) => Err(SettingsError::option(
                name,
                "it is for Unix sockets only; elsewhere the database follows the host, as in redis://host/2",
            )),
            "database" => match value.parse() {
                Ok(number @ 0..) => Ok(Self { url: Url { database: number, ..self.url }, ..self }),
                _ => Err(SettingsError::option(name, format_args!("{value:?} is not a number"))),
            },
            "sentinel_user" | "sentinel_password"
                if !matches!(self.url.topology, Topology::Sentinel { .. }) =>
            {
                Err(SettingsError::option(name, "the URL names no sentinels; use redis+sentinel://"))
            }
            "sentinel_user" => Ok(Self { sentinel_user: Some(value.to_owned()), ..self }),
            "sentinel_password" => Ok(Self { sentinel_password: Some(value.to_owned()), ..self }),
            _ => {
                self.remote.set_option(name, value, &OPTIONS)?;
                Ok(self)
            }
        }
    }

    /// Sets the prefix of all keys, `sg` by default. Applications that share a server need different prefixes.
    pub fn prefix(mut self, prefix: &str) -> Result<Self, SettingsError> {
        let is_valid = |c: char| c.is_ascii_graphic() && !matches!(c, '{' | '}');
        if prefix.is_empty() || prefix.len() > 64 || !prefix.chars().all(is_valid) {
            let why = format!("{prefix:?} is not 1 to 64 visible ASCII characters without braces");
            return Err(SettingsError::option("prefix", why));
        }
        prefix.clone_into(&mut self.prefix);
        Ok(self)
    }

    /// Sets the form in which keys are stored.
    pub fn key_style(mut self, style: KeyStyle) -> Self {
        self.key_style = style;
        self
    }

    /// Sets the client certificate and its key, as PEM.
    pub fn client_certificate(mut self, cert_pem: impl Into<Vec<u8>>, key_pem: impl Into<Vec<u8>>) -> Self {
        (self.client_cert_pem, self.client_key_pem) = (Some(cert_pem.into()), Some(key_pem.into()));
        self
    }

    /// Connects, and returns the error if that fails. Connections that break later are replaced in the background.
    pub async fn connect(self) -> Result<RedisStore, StoreError> {
        let store = self.connect_lazily();
        store.ready().await?;
        Ok(store)
    }

    /// Connects in the background. Must be called within a tokio runtime. Without a connection, requests wait for it until
    /// their budget is spent, or fail at once if the last attempt has failed.
    pub fn connect_lazily(self) -> RedisStore {
        RedisStore::start(&self)
    }

    pub(super) fn names(&self) -> KeyNames {
        KeyNames::new(&self.prefix, self.remote.secret.as_deref(), self.key_style)
    }

    pub(super) fn subscriber(&self) -> Subscriber {
        Subscriber::new(&self.prefix)
    }

    pub(super) fn connect_budget(&self) -> Duration {
        self.remote.budget().max(MIN_CONNECT_BUDGET)
    }
}

remote_setters! {
    RedisStoreBuilder:
    /// Sets the secret of the hash under which keys are stored. All processes that share a limit need the same secret.
    /// Without a secret, a reader of the server's keys can test whether a guessed key is among them.
    secret;
    /// Sets the time that a request may take in total, 100 ms by default.
    budget;
    /// Sets the largest number of queued requests per server, 8192 by default. Further requests fail at once.
    max_waiting;
    /// Sets the certificate authority of the servers, as PEM, in place of the system's.
    ca_certificate;
    /// Decides by this clock and its grain in place of the server's. For tests: processes whose clocks differ do not share an exact
    /// limit. Records live an hour longer than needed, because the server does not know the pace of this clock.
    time_from;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_name_the_invalid_option() {
        let error_of = |url: &str| RedisStoreBuilder::parse(url).unwrap_err().to_string();
        assert!(
            error_of("redis://a?prefx=b").starts_with("prefx: there is no such option; allowed are prefix,")
        );
        assert!(error_of("redis://a?prefix=%7B").starts_with("prefix: \"{\" is not 1 to 64 visible"));
        assert!(error_of("redis://a?budget_ms=0").starts_with("budget_ms: \"0\" is not between 1 and 60000"));
        assert!(error_of("redis://a?keys=odd").starts_with("keys: \"odd\" is not one of hashed, plain"));
        assert!(error_of("rediss://a?ca=/nowhere").starts_with("ca: cannot read \"/nowhere\""));
        for url in ["redis://a", "redis+cluster://a", "redis+sentinel://a/b"] {
            let error = error_of(&format!("{url}?ca=/nowhere"));
            assert!(!error.contains("nowhere") && error.contains("does not use TLS"), "{error}");
        }
        assert!(error_of("redis://a?secret=").starts_with("secret: it is empty"));
        assert!(error_of("redis://a?sentinel_user=b").starts_with("sentinel_user: the URL names no"));
        assert!(error_of("redis://a?database=2").starts_with("database: it is for Unix sockets only"));
        assert!(error_of("redis+unix:///a?database=x").starts_with("database: \"x\" is not a number"));
        assert!(
            error_of("redis://a?cert=/nowhere").starts_with("cert: the scheme of the URL does not use TLS")
        );
    }
}
