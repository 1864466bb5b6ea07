//! Settings of a PostgreSQL store.

use std::collections::HashMap;
use std::fmt;
use std::str::FromStr;

use tokio_postgres::Config;

use crate::error::SettingsError;
use crate::store::remote::{RemoteSettings, remote_setters};

/// With two connections, one call is prepared while the server executes the other. More are useful only once two are
/// saturated.
const DEFAULT_CONNECTIONS: usize = 2;
const OPTIONS: [&str; 7] = ["schema", "secret", "durable", "sync", "budget_ms", "connections", "ca"];

/// Converts the driver's error about a URL. Only details that cannot contain a secret are kept.
fn url_error(error: &tokio_postgres::Error) -> SettingsError {
    let details = std::error::Error::source(error).map(ToString::to_string).unwrap_or_default();
    let names_an_option =
        ["unknown option", "invalid value for option"].iter().any(|begin| details.starts_with(begin));
    let details = if names_an_option { format!(": {details}") } else { String::new() };
    let own = OPTIONS.join(", ");
    SettingsError::url(format_args!(
        "{error}{details}; the form is postgres://user:password@host:5432/database?schema=slidegate, with the options \
         {own} and those of PostgreSQL that name no file (sslmode is disable, prefer or require)"
    ))
}

/// Condition under which a durable decision is committed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Synchronous {
    /// None: a crash may lose the last fraction of a second. PostgreSQL's `synchronous_commit = off`.
    #[default]
    Off,
    /// The decision is on this server's disk: `local`.
    Local,
    /// The decision is on the disks of this server and of the synchronous standbys: `on`.
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

/// Builder of a [`PostgresStore`](super::PostgresStore).
#[derive(Clone)]
pub struct PostgresStoreBuilder {
    pub(crate) remote: RemoteSettings,
    pub(super) config: Config,
    pub(super) schema: String,
    pub(super) is_durable: bool,
    pub(super) durability: HashMap<String, bool>,
    pub(super) synchronous: Synchronous,
    pub(super) connections: usize,
}

/// Omits passwords and secrets.
impl fmt::Debug for PostgresStoreBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresStoreBuilder").field("schema", &self.schema).finish_non_exhaustive()
    }
}

impl PostgresStoreBuilder {
    pub(super) fn parse(url: &str) -> Result<Self, SettingsError> {
        let rest = url.split_once("://").map_or("", |(_, rest)| rest);
        if rest.find(['/', '?']).is_some_and(|end| rest[end..].contains('@')) {
            // The driver would take part of the password for a host, and messages contain the host.
            return Err(SettingsError::url(
                "special characters of the user and the password have to be escaped: @ as %40, / as %2F",
            ));
        }
        let (own, rest) = split_options(url);
        let config = Config::from_str(&rest).map_err(|error| url_error(&error))?;
        let mut builder = Self {
            remote: RemoteSettings::default(),
            config,
            schema: "slidegate".to_owned(),
            is_durable: false,
            durability: HashMap::new(),
            synchronous: Synchronous::default(),
            connections: DEFAULT_CONNECTIONS,
        };
        for (name, value) in own {
            builder = builder.option(&name, &value)?;
        }
        Ok(builder)
    }

    fn option(mut self, name: &str, value: &str) -> Result<Self, SettingsError> {
        match name {
            "schema" => self.schema(value),
            "durable" => match value {
                "true" => Ok(self.durable(true)),
                "false" => Ok(self.durable(false)),
                "" | "yes" | "no" | "on" | "off" | "1" | "0" => Err(SettingsError::option(
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
                _ => Err(SettingsError::option(name, format_args!("{value:?} is not one of off, local, on"))),
            },
            "connections" => match value.parse() {
                Ok(count @ 1..=100) => Ok(self.connections(count)),
                _ => Err(SettingsError::option(name, format_args!("{value:?} is not between 1 and 100"))),
            },
            _ => {
                self.remote.set_option(name, value, &OPTIONS)?;
                Ok(self)
            }
        }
    }

    /// Sets the schema of the tables and functions, `slidegate` by default.
    pub fn schema(mut self, schema: &str) -> Result<Self, SettingsError> {
        let is_valid = |(place, c): (usize, char)| {
            c == '_' || c.is_ascii_lowercase() || (place > 0 && c.is_ascii_digit())
        };
        if schema.is_empty() || schema.len() > 63 || !schema.chars().enumerate().all(is_valid) {
            let why = format!("{schema:?} is not 1 to 63 lower-case letters, digits and underscores");
            return Err(SettingsError::option("schema", why));
        }
        schema.clone_into(&mut self.schema);
        Ok(self)
    }

    /// Sets whether counts survive a crash of the server, `false` by default.
    /// [`policy_durable`](Self::policy_durable) overrides it for a policy.
    pub fn durable(mut self, is_durable: bool) -> Self {
        self.is_durable = is_durable;
        self
    }

    /// Sets whether the counts of a policy survive a crash of the server.
    pub fn policy_durable(mut self, policy: &str, is_durable: bool) -> Self {
        self.durability.insert(policy.to_owned(), is_durable);
        self
    }

    /// Sets when a durable decision is committed.
    pub fn synchronous(mut self, synchronous: Synchronous) -> Self {
        self.synchronous = synchronous;
        self
    }

    /// Sets the largest number of connections, 2 by default. Each carries one call at a time.
    pub fn connections(mut self, connections: usize) -> Self {
        self.connections = connections.max(1);
        self
    }
}

remote_setters! {
    PostgresStoreBuilder:
    /// Sets the secret of the hash under which keys are stored. All processes that share a limit need the same secret.
    secret;
    /// Sets the budget of a request, 100 ms by default.
    budget;
    /// Sets the largest number of queued requests, 8192 by default. Further requests are rejected at once.
    max_waiting;
    /// Sets the certificate authority, as PEM, that is trusted in place of the system's.
    ca_certificate;
    /// Sets the clock that decides, with its grain, in place of the server's. For tests.
    time_from;
}

/// Splits a URL into Slidegate's own options and the rest, which is for the driver.
fn split_options(url: &str) -> (Vec<(String, String)>, String) {
    let Some((base, query)) = url.split_once('?') else { return (Vec::new(), url.to_owned()) };
    let (mut own, mut rest) = (Vec::new(), Vec::new());
    for option in query.split('&').filter(|option| !option.is_empty()) {
        let (name, value) = option.split_once('=').unwrap_or((option, ""));
        if OPTIONS.contains(&name) {
            let value = percent_encoding::percent_decode_str(value).decode_utf8_lossy().into_owned();
            own.push((name.to_owned(), value));
        } else {
            rest.push(option);
        }
    }
    let rest = if rest.is_empty() { base.to_owned() } else { format!("{base}?{}", rest.join("&")) };
    (own, rest)
}

#[cfg(test)]
mod tests {
    use super::PostgresStoreBuilder;

    #[test]
    fn errors_name_the_invalid_option_and_contain_no_password() {
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
