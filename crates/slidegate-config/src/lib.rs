//! The configuration file `slidegate.yaml`: its fields, its JSON Schema, and the foreign formats that can be read beside it.
//!
//! The crate reads and validates. It contains no running parts: the engine puts the policies in force, and the server
//! opens the listeners.
#![expect(missing_docs, reason = "an internal crate: names that speak for themselves have no text")]
#![allow(
    rustdoc::private_intra_doc_links,
    reason = "an internal crate: its documentation is read with the code"
)]

mod bounded_integer;
pub mod envoy;
mod fields;
mod file;
pub mod import;
mod key_rule;
mod policy_set;
mod problem;
mod quota_spec;
mod schema;
mod sections;
mod tls;
mod tokens;

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use slidegate::store::{MemoryStore, MemoryStoreBuilder, WhenFull};
use slidegate::{Policy, SettingsError};

pub use self::bounded_integer::BoundedInteger;
pub use self::fields::json::yaml_to_json;
pub use self::fields::scalars::Keyword;
pub use self::key_rule::{KeyPart, KeyRule};
pub use self::policy_set::{Override, PolicyEntry, PolicySet, listed};
pub use self::problem::{Problem, Problems};
pub use self::quota_spec::{NamedQuota, QuotaFields, QuotaProblem, QuotaSpec};
pub use self::schema::{reference, schema};
pub use self::sections::address::Address;
pub use self::sections::admin::AdminConfig;
pub use self::sections::connections::{Limits, ViolationLog};
pub use self::sections::degrade::{DegradeConfig, DegradeOverride};
pub use self::sections::envoy::EnvoyConfig;
pub use self::sections::listen::Listen;
pub use self::tls::{FileProblem, TlsFiles, certificates, mismatch, private_key};
pub use self::tokens::{Scope, Token, Tokens, Verbs};
pub use slidegate::store::StoreUrl;

/// Maximum length of a key in bytes.
pub const MAX_KEY_BYTES: usize = 4096;

/// Maximum size of a configuration file.
const MAX_FILE_BYTES: u64 = 8 << 20;

/// Settings of a configuration file. Flags and defaults fill in absent settings.
#[derive(Clone, Debug, Default)]
pub struct Config {
    /// Address of the HTTP listener.
    pub http: Option<Address>,
    /// Address of the gRPC listener.
    pub grpc: Option<Listen>,
    /// Address of the listener for the Redis protocol.
    pub resp: Option<Listen>,
    /// Listener of the admin API.
    pub admin: AdminConfig,
    /// Tokens of clients.
    pub tokens: Tokens,
    /// Files that contain tokens, admin tokens included.
    pub token_files: Vec<PathBuf>,
    /// Store of the counts.
    pub store: Option<StoreUrl>,
    /// Limits of connections.
    pub limits: Limits,
    /// Certificates of the listeners.
    pub tls: Option<TlsFiles>,
    /// Log of denials.
    pub log: ViolationLog,
    /// Size of the memory store.
    pub memory: MemoryConfig,
    /// Behaviour when the store fails, and modes of policies.
    pub degrade: DegradeConfig,
    /// Configuration of envoyproxy/ratelimit.
    pub envoy: Option<EnvoyConfig>,
    /// Policies that requests may name.
    pub policies: PolicySet,
}

/// Settings of the memory store. Absent settings have the library's defaults.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct MemoryConfig {
    /// Maximum number of keys.
    pub max_keys: Option<usize>,
    /// Maximum memory in bytes.
    pub max_bytes: Option<usize>,
    /// Handling of a new key in a full store.
    pub when_full: Option<WhenFull>,
}

impl MemoryConfig {
    /// Builds a store of this size, on the system's clock.
    pub fn build(self) -> Result<MemoryStore, SettingsError> {
        self.builder().build()
    }

    /// Returns the builder of a store of this size.
    pub fn builder(self) -> MemoryStoreBuilder {
        let mut builder = MemoryStore::builder().when_full(self.when_full.unwrap_or_default());
        if let Some(max_keys) = self.max_keys {
            builder = builder.max_keys(max_keys);
        }
        if let Some(max_bytes) = self.max_bytes {
            builder = builder.max_bytes(max_bytes);
        }
        builder
    }
}

impl Config {
    /// Reads a file, or returns all its problems.
    pub fn load(path: &Path) -> Result<Self, Problems> {
        Self::read(&path.display().to_string(), File::open(path), true)
    }

    /// Reads standard input, which messages call `-`.
    pub fn load_stdin() -> Result<Self, Problems> {
        Self::read("-", Ok(io::stdin()), true)
    }

    /// Reads a file like [`Config::load`], except for the files and variables that it names: tokens and certificates,
    /// which only a server needs.
    pub fn load_without_references(path: &Path) -> Result<Self, Problems> {
        Self::read(&path.display().to_string(), File::open(path), false)
    }

    fn read(name: &str, file: io::Result<impl Read>, follows_references: bool) -> Result<Self, Problems> {
        let text = read_text(file).map_err(|message| vec![Problem::without_line("file", message)]);
        text.and_then(|text| file::parse(&text, follows_references))
            .map_err(|problems| Problems::new(name, problems))
    }

    /// Parses the text of a file, or returns all its problems.
    pub fn parse(text: &str) -> Result<Self, Vec<Problem>> {
        file::parse(text, true)
    }

    /// Returns the settings that differ from `other` and take effect at start only.
    pub fn restart_only_differences(&self, other: &Self) -> Vec<&'static str> {
        let differs = [
            ("http", self.http != other.http),
            ("grpc", self.grpc != other.grpc),
            ("resp", self.resp != other.resp),
            ("admin", !self.admin.has_same_fixed_settings(&other.admin)),
            ("tokens (whether there are any)", self.tokens.is_empty() != other.tokens.is_empty()),
            ("store", self.store != other.store),
            ("limits", self.limits != other.limits),
            ("tls", self.tls != other.tls),
            ("log", self.log != other.log),
            ("memory", self.memory != other.memory),
            ("envoy", self.envoy != other.envoy),
            ("degrade", !self.degrade.has_same_defaults(&other.degrade)),
            (
                "on_failure, budget, retry_jitter or cache_denials of a policy",
                self.degrade.policy_overrides() != other.degrade.policy_overrides(),
            ),
        ];
        differs.into_iter().filter_map(|(name, differs)| differs.then_some(name)).collect()
    }

    /// Returns the policies that are absent from `first` and set values of `degrade`, which are read at start only.
    pub fn new_policies_with_overrides(&self, first: &Self) -> Vec<&str> {
        let overridden = self.degrade.policy_overrides().into_keys();
        overridden.filter(|name| first.policies.names().all(|known| known != *name)).collect()
    }

    /// Returns the configuration of a service without a file: one sample policy.
    pub fn sample() -> Self {
        let mut config = Self::default();
        if let Ok(policy) = Policy::parse("api", ["100/1m"]) {
            config.policies.insert(policy);
        }
        config
    }
}

/// Reads at most [`MAX_FILE_BYTES`], because the path may lead to an endless device.
fn read_text(file: io::Result<impl Read>) -> Result<String, String> {
    let mut text = String::new();
    let read = file.and_then(|file| file.take(MAX_FILE_BYTES + 1).read_to_string(&mut text));
    match read {
        Err(error) => Err(format!("cannot be read: {error}")),
        Ok(_) if text.len() as u64 > MAX_FILE_BYTES => Err(format!("has more than {MAX_FILE_BYTES} bytes")),
        Ok(_) => Ok(text),
    }
}
