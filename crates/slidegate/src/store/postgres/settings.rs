//! How a PostgreSQL store is set up.

use std::collections::HashMap;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use tokio_postgres::Config;

use super::pool::Shared;
use super::{PostgresStore, clean, migration};
use crate::clock::Clock;
use crate::error::StoreError;

const DEFAULT_BUDGET: Duration = Duration::from_millis(100);
/// One is served while the other is prepared. More are of use only to more callers than these two can carry.
const DEFAULT_CONNECTIONS: usize = 2;
const DEFAULT_MAX_WAITING: usize = 8192;
const OWN_OPTIONS: [&str; 7] = ["schema", "secret", "durable", "sync", "budget_ms", "connections", "ca"];

/// A setting that is not allowed: what is wrong with it and what is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PostgresSettingsError {
    message: String,
}

impl fmt::Display for PostgresSettingsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for PostgresSettingsError {}

/// What the driver has against a URL, as far as it repeats nothing that may be secret.
fn not_a_url(error: &tokio_postgres::Error) -> PostgresSettingsError {
    let why = std::error::Error::source(error).map(ToString::to_string).unwrap_or_default();
    let names_an_option =
        ["unknown option", "invalid value for option"].iter().any(|begin| why.starts_with(begin));
    let why = if names_an_option { format!(": {why}") } else { String::new() };
    let own = OWN_OPTIONS.join(", ");
    wrong(
        "url",
        format_args!(
            "{error}{why}; it looks like postgres://user:password@host:5432/database?schema=slidegate, and its options are \
             {own} and those of PostgreSQL that name no file (sslmode is disable, prefer or require)"
        ),
    )
}

fn wrong(option: &str, why: impl fmt::Display) -> PostgresSettingsError {
    PostgresSettingsError { message: format!("store: {option}: {why}") }
}

/// When a decision that must survive a crash counts as made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Synchronous {
    /// At once; a crash may forget the last fraction of a second. PostgreSQL's `synchronous_commit = off`.
    #[default]
    Off,
    /// When it is on this server's disk: `local`.
    Local,
    /// When it is on this server's disk and on the synchronous standbys': `on`.
    On,
}

impl Synchronous {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Local => "local",
            Self::On => "on",
        }
    }
}

/// Sets up a [`PostgresStore`].
#[derive(Clone)]
pub struct PostgresStoreBuilder {
    pub(super) config: Config,
    pub(super) schema: String,
    pub(super) secret: Option<String>,
    pub(super) is_durable: bool,
    pub(super) durability: HashMap<String, bool>,
    pub(super) synchronous: Synchronous,
    pub(super) budget: Duration,
    pub(super) connections: usize,
    pub(super) max_waiting: usize,
    pub(super) ca_pem: Option<Vec<u8>>,
    pub(super) given_time: Option<Arc<dyn Clock>>,
}

/// Without passwords and secrets.
impl fmt::Debug for PostgresStoreBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresStoreBuilder").field("schema", &self.schema).finish_non_exhaustive()
    }
}

impl PostgresStoreBuilder {
    pub(super) fn parse(url: &str) -> Result<Self, PostgresSettingsError> {
        let rest = url.split_once("://").map_or("", |(_, rest)| rest);
        if rest.find(['/', '?']).is_some_and(|end| rest[end..].contains('@')) {
            // Taken as it stands, it would make a host of half a password, and hosts are shown.
            return Err(wrong(
                "url",
                "what is special in a user's name or a password is escaped: @ is %40, / is %2F",
            ));
        }
        let (own, theirs) = split_options(url);
        let config = Config::from_str(&theirs).map_err(|error| not_a_url(&error))?;
        let mut builder = Self {
            config,
            schema: "slidegate".to_owned(),
            secret: None,
            is_durable: false,
            durability: HashMap::new(),
            synchronous: Synchronous::default(),
            budget: DEFAULT_BUDGET,
            connections: DEFAULT_CONNECTIONS,
            max_waiting: DEFAULT_MAX_WAITING,
            ca_pem: None,
            given_time: None,
        };
        for (name, value) in own {
            builder = builder.option(&name, &value)?;
        }
        Ok(builder)
    }

    fn option(self, name: &str, value: &str) -> Result<Self, PostgresSettingsError> {
        match name {
            "schema" => self.schema(value),
            "secret" if value.is_empty() => Err(wrong(name, "it is empty")),
            "secret" => Ok(self.secret(value)),
            "durable" => match value {
                "true" => Ok(self.durable(true)),
                "false" => Ok(self.durable(false)),
                "" | "yes" | "no" | "on" | "off" | "1" | "0" => Err(wrong(
                    name,
                    format_args!(
                        "{value:?} is not true, false or names of policies with commas between them"
                    ),
                )),
                policies => {
                    Ok(policies.split(',').fold(self, |builder, name| builder.policy_durable(name, true)))
                }
            },
            "sync" => match value {
                "off" => Ok(self.synchronous(Synchronous::Off)),
                "local" => Ok(self.synchronous(Synchronous::Local)),
                "on" => Ok(self.synchronous(Synchronous::On)),
                _ => Err(wrong(name, format_args!("{value:?} is not one of off, local, on"))),
            },
            "budget_ms" => match value.parse() {
                Ok(ms @ 1..=60_000) => Ok(self.budget(Duration::from_millis(ms))),
                _ => Err(wrong(name, format_args!("{value:?} is not between 1 and 60000"))),
            },
            "connections" => match value.parse() {
                Ok(count @ 1..=100) => Ok(self.connections(count)),
                _ => Err(wrong(name, format_args!("{value:?} is not between 1 and 100"))),
            },
            "ca" => {
                let pem = std::fs::read(value)
                    .map_err(|error| wrong(name, format_args!("cannot read {value:?}: {error}")))?;
                Ok(self.ca_certificate(pem))
            }
            _ => Err(wrong(
                name,
                format_args!("there is no such option; allowed are {}", OWN_OPTIONS.join(", ")),
            )),
        }
    }

    /// The schema in which the tables and functions are, `slidegate` unless set.
    pub fn schema(mut self, schema: &str) -> Result<Self, PostgresSettingsError> {
        let is_fine = |(place, c): (usize, char)| {
            c == '_' || c.is_ascii_lowercase() || (place > 0 && c.is_ascii_digit())
        };
        if schema.is_empty() || schema.len() > 63 || !schema.chars().enumerate().all(is_fine) {
            let why = format!("{schema:?} is not 1 to 63 lower-case letters, digits and underscores");
            return Err(wrong("schema", why));
        }
        schema.clone_into(&mut self.schema);
        Ok(self)
    }

    /// Keys the hash by which identifiers are stored. All callers that share a limit share the secret.
    pub fn secret(mut self, secret: &str) -> Self {
        self.secret = Some(secret.to_owned());
        self
    }

    /// Whether counts survive a crash of the server, for policies that are not named otherwise. They do not unless set.
    pub fn durable(mut self, is_durable: bool) -> Self {
        self.is_durable = is_durable;
        self
    }

    /// Whether the counts of this policy survive a crash of the server.
    pub fn policy_durable(mut self, policy: &str, is_durable: bool) -> Self {
        self.durability.insert(policy.to_owned(), is_durable);
        self
    }

    /// When a durable decision counts as made.
    pub fn synchronous(mut self, synchronous: Synchronous) -> Self {
        self.synchronous = synchronous;
        self
    }

    /// How long a call may take altogether, 100 ms unless set.
    pub fn budget(mut self, budget: Duration) -> Self {
        self.budget = budget;
        self
    }

    /// How many connections there are at the most, 2 unless set. Each carries one call at a time.
    pub fn connections(mut self, connections: usize) -> Self {
        self.connections = connections.max(1);
        self
    }

    /// How many calls may wait for their turn, 8192 unless set. One more is refused at once.
    pub fn max_waiting(mut self, max_waiting: usize) -> Self {
        self.max_waiting = max_waiting.max(1);
        self
    }

    /// The certificate authority, as PEM, that vouches for the server, in place of the system's.
    pub fn ca_certificate(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.ca_pem = Some(pem.into());
        self
    }

    /// Decides by this clock in place of the server's. For tests.
    pub fn time_from(mut self, clock: impl Clock) -> Self {
        self.given_time = Some(Arc::new(clock));
        self
    }

    /// Connects, and makes the schema if it is missing and that is permitted.
    pub async fn connect(self) -> Result<PostgresStore, StoreError> {
        PostgresStore::start(self).await
    }

    /// Connects in the background, and makes the schema as [`connect`](Self::connect) does. Must be called within a tokio
    /// runtime. Until that has succeeded, calls fail at once.
    pub fn connect_lazily(self) -> Result<PostgresStore, StoreError> {
        PostgresStore::start_lazily(self)
    }

    /// The SQL that makes the schema, see [`PostgresStore::migration`].
    pub fn migration(&self) -> String {
        migration::script(&self.schema)
    }

    /// Removes what counts nothing any more, see [`PostgresStore::clean`], and makes nothing.
    pub async fn clean(self) -> Result<u64, StoreError> {
        clean::clean(&Shared::new(&self)?).await
    }

    /// Makes the schema, or what it lacks. Whoever does this has to be its owner, or be allowed to make it.
    pub async fn migrate(self) -> Result<(), StoreError> {
        let shared = Shared::new(&self)?;
        migration::migrate(&*shared.client().await?, &shared.schema).await
    }
}

/// Takes our options out of a URL.
fn split_options(url: &str) -> (Vec<(String, String)>, String) {
    let Some((place, query)) = url.split_once('?') else { return (Vec::new(), url.to_owned()) };
    let (mut own, mut theirs) = (Vec::new(), Vec::new());
    for option in query.split('&').filter(|option| !option.is_empty()) {
        let (name, value) = option.split_once('=').unwrap_or((option, ""));
        if OWN_OPTIONS.contains(&name) {
            let value = percent_encoding::percent_decode_str(value).decode_utf8_lossy().into_owned();
            own.push((name.to_owned(), value));
        } else {
            theirs.push(option);
        }
    }
    let rest = if theirs.is_empty() { place.to_owned() } else { format!("{place}?{}", theirs.join("&")) };
    (own, rest)
}

#[cfg(test)]
mod tests {
    use super::PostgresStoreBuilder;

    #[test]
    fn what_is_wrong_with_a_url_is_named_and_no_password_is_repeated() {
        for (options, expected) in [
            ("shema=x", "unknown option `shema`"),
            ("sslrootcert=/a", "unknown option `sslrootcert`"),
            ("sslmode=verify-full", "invalid value for option `sslmode`"),
            ("sslmode=verify-full", "(sslmode is disable, prefer or require)"),
            ("durable=yes", "durable: \"yes\" is not true, false or names of policies"),
            ("durable=", "durable: \"\" is not true, false or names of policies"),
        ] {
            let url = format!("postgres://app:hush@db/app?{options}");
            let error = PostgresStoreBuilder::parse(&url).err().map(|error| error.to_string()).unwrap();
            assert!(error.contains(expected) && !error.contains("hush"), "{options}: {error}");
        }
        assert!(PostgresStoreBuilder::parse("postgres://app:hush@db/app?durable=payments,logins").is_ok());
    }
}
