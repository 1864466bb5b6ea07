//! The configuration file, `slidegate.yaml`.

mod address;
mod admin;
mod containers;
mod degrade;
mod door;
mod envoy;
mod field;
mod file;
mod key;
mod kinds;
mod listen;
mod memory;
mod policy;
mod problem;
mod quota;
mod review;
mod schema;
mod store_url;
mod token;
mod tree;

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use slidegate::{MemoryStore, MemoryStoreBuilder, Policy, SettingsError, WhenFull};

pub use self::address::Address;
pub use self::admin::AdminConfig;
pub use self::degrade::{DegradeConfig, PolicyRule};
pub use self::envoy::EnvoyConfig;
pub(crate) use self::kinds::Word;
pub use self::listen::Listen;
pub use self::problem::{Problem, Problems};
pub use self::schema::{reference, schema};
pub use self::store_url::{PostgresUrl, RedisUrl, StoreUrl};
use crate::policies::Policies;
use crate::serve::{Limits, TlsFiles};
use crate::tokens::Tokens;
use crate::violations::ViolationLog;

/// So large may a file be.
const MOST_BYTES: u64 = 8 << 20;

/// Everything that a file may set. What it does not set is left to flags and defaults.
#[derive(Clone, Debug, Default)]
pub struct Config {
    /// Where to serve HTTP.
    pub http: Option<Address>,
    /// Where to serve gRPC.
    pub grpc: Option<Listen>,
    /// Where to serve the protocol of Redis.
    pub resp: Option<Listen>,
    /// The listener for those who look after the service.
    pub admin: AdminConfig,
    /// Who may ask for decisions.
    pub tokens: Tokens,
    /// The files in which tokens are, those for admins too.
    pub token_files: Vec<PathBuf>,
    /// Where to keep counts.
    pub store: Option<StoreUrl>,
    /// What connections may take.
    pub limits: Limits,
    /// The certificates to serve with.
    pub tls: Option<TlsFiles>,
    /// Which denials are logged.
    pub log: ViolationLog,
    /// How large the memory store may become.
    pub memory: MemoryConfig,
    /// What is done when the store fails, and which policies are switched.
    pub degrade: DegradeConfig,
    /// Configuration of envoyproxy/ratelimit.
    pub envoy: Option<EnvoyConfig>,
    /// The policies that requests may name.
    pub policies: Policies,
}

/// The memory store's settings; what is not set is at the library's default.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct MemoryConfig {
    /// The most keys.
    pub max_keys: Option<usize>,
    /// The most memory.
    pub max_bytes: Option<usize>,
    /// What happens to a new key when it is full.
    pub when_full: Option<WhenFull>,
}

impl MemoryConfig {
    /// A store of this size, on the system's clock.
    pub fn build(self) -> Result<MemoryStore, SettingsError> {
        self.builder().build()
    }

    /// A store of this size to be.
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
    /// Reads a file, or says everything that is wrong with it.
    pub fn load(path: &Path) -> Result<Self, Problems> {
        Self::read(&path.display().to_string(), File::open(path), true)
    }

    /// Reads what is piped in, which goes by the name of `-`.
    pub fn load_piped() -> Result<Self, Problems> {
        Self::read("-", Ok(io::stdin()), true)
    }

    /// The same without what only a server needs: tokens and certificates that are elsewhere are not looked for.
    pub fn load_rules(path: &Path) -> Result<Self, Problems> {
        Self::read(&path.display().to_string(), File::open(path), false)
    }

    fn read(name: &str, file: io::Result<impl Read>, looks_around: bool) -> Result<Self, Problems> {
        let text = read_text(file).map_err(|message| vec![Problem::without_line("file", message)]);
        text.and_then(|text| file::parse(&text, looks_around))
            .map_err(|problems| Problems::new(name, problems))
    }

    /// Reads the text of a file, or says everything that is wrong with it.
    pub fn parse(text: &str) -> Result<Self, Vec<Problem>> {
        file::parse(text, true)
    }

    /// What differs from `other` and is read at start only.
    pub fn fixed_differences(&self, other: &Self) -> Vec<&'static str> {
        let differs = [
            ("http", self.http != other.http),
            ("grpc", self.grpc != other.grpc),
            ("resp", self.resp != other.resp),
            ("admin", !self.admin.is_fixed_like(&other.admin)),
            ("tokens (whether there are any)", self.tokens.is_empty() != other.tokens.is_empty()),
            ("store", self.store != other.store),
            ("limits", self.limits != other.limits),
            ("tls", self.tls != other.tls),
            ("log", self.log != other.log),
            ("memory", self.memory != other.memory),
            ("envoy", self.envoy != other.envoy),
            ("degrade", !self.degrade.is_usually_like(&other.degrade)),
            (
                "on_failure, budget, retry_jitter or cache_denials of a policy",
                self.degrade.own_rules() != other.degrade.own_rules(),
            ),
        ];
        differs.into_iter().filter_map(|(what, differs)| differs.then_some(what)).collect()
    }

    /// Policies that `first` does not have, and that have rules of their own for when the store fails.
    pub fn rules_beyond(&self, first: &Self) -> Vec<&str> {
        let own = self.degrade.own_rules().into_keys();
        own.filter(|name| first.policies.names().all(|known| known != *name)).collect()
    }

    /// What is served when no file is given: one policy to try things with.
    pub fn sample() -> Self {
        let mut config = Self::default();
        if let Ok(policy) = Policy::parse("api", ["100/1m"]) {
            config.policies.insert(policy);
        }
        config
    }
}

/// No more than a file may have, whatever is behind the path.
fn read_text(file: io::Result<impl Read>) -> Result<String, String> {
    let mut text = String::new();
    let read = file.and_then(|file| file.take(MOST_BYTES + 1).read_to_string(&mut text));
    match read {
        Err(error) => Err(format!("cannot be read: {error}")),
        Ok(_) if text.len() as u64 > MOST_BYTES => Err(format!("has more than {MOST_BYTES} bytes")),
        Ok(_) => Ok(text),
    }
}
