//! Section `admin`: the listener of the admin API.

use std::path::PathBuf;

use serde_json::{Value as Json, json};

use crate::fields::containers::{ListOf, Mapping};
use crate::fields::diagnostics::Diagnostics;
use crate::fields::field::{Children, Field, FieldList, Fields, Kind, mapping_schema};
use crate::fields::scalars::{FsPath, Parsed};
use crate::fields::tree::{Node, Value};
use crate::sections::listen::{LISTEN, Listen};
use crate::sections::token::{ADMIN_TOKENS, TokenSpec, tokens};
use crate::tokens::Tokens;

/// Settings of the admin API.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AdminConfig {
    /// Address of the listener.
    pub listen: Option<Listen>,
    /// Accepted tokens.
    pub tokens: Tokens,
    /// File that keeps changes when the store is memory.
    pub state: Option<PathBuf>,
}

impl AdminConfig {
    /// Returns whether both agree on the settings that are read at start only.
    pub(crate) fn has_same_fixed_settings(&self, other: &Self) -> bool {
        let fixed = |config: &Self| (config.listen.clone(), config.state.clone(), config.tokens.is_empty());
        fixed(self) == fixed(other)
    }

    /// Returns the listening address, or an error if a remote client could use the API without a token. An `address`
    /// from the command line takes precedence over the file.
    pub fn checked_listen(&self, address: Option<Listen>) -> Result<Listen, String> {
        let listen = match address.or_else(|| self.listen.clone()) {
            Some(listen) => listen,
            None => Listen::admin(),
        };
        match listen.address() {
            Some(address) if self.tokens.is_empty() && !address.is_loopback() => Err(format!(
                "{address} is not a loopback address and admin.tokens is empty; give admin.tokens, or listen on \
                 127.0.0.1"
            )),
            _ => Ok(listen),
        }
    }
}

const LISTEN_AT: Field<Parsed<Listen>> =
    Field::new("listen", LISTEN, "Address of the admin API, or off.").with_default("127.0.0.1:8082");
const TOKENS: Field<ListOf<Mapping<TokenSpec>>> = Field::new(
    "tokens",
    ADMIN_TOKENS,
    "Tokens that the admin API accepts. Without tokens, it listens on loopback addresses only.",
)
.with_described_default("no token is required");
const STATE: Field<FsPath> = Field::new(
    "state",
    FsPath::FILE,
    "File that keeps the changes of the admin API when the store is memory. Its folder must exist.",
)
.with_described_default("one of four places, see admin.md");

const FIELDS: FieldList = &[&LISTEN_AT, &TOKENS, &STATE];

/// A mapping, or the address alone.
#[derive(Clone, Copy)]
pub(crate) struct AdminKind;

impl Kind for AdminKind {
    type Value = AdminConfig;

    fn read(&self, node: &Node, path: &str, diagnostics: &mut Diagnostics) -> Option<AdminConfig> {
        match &node.value {
            Value::Map(_) => Mapping {
                fields: FIELDS,
                one_of: &[],
                read: |fields, diagnostics| Some(admin(fields, diagnostics)),
            }
            .read(node, path, diagnostics),
            Value::Scalar { .. } if !node.is_null() => {
                let listen = LISTEN.read(node, path, diagnostics)?;
                let config = AdminConfig { listen: Some(listen), ..AdminConfig::default() };
                if let Err(message) = config.checked_listen(None) {
                    diagnostics.report(node.line, path, message);
                }
                Some(config)
            }
            _ => {
                diagnostics.report(
                    node.line,
                    path,
                    format!("expected {}, not {}", self.expected(), node.kind()),
                );
                None
            }
        }
    }

    fn schema(&self) -> Json {
        json!({"anyOf": [LISTEN.schema(), mapping_schema(FIELDS)]})
    }

    fn expected(&self) -> String {
        format!("{}, or a mapping with listen, tokens and state", LISTEN.expected())
    }

    fn children(&self) -> Children {
        Children { step: "", fields: FIELDS }
    }
}

fn admin(fields: &Fields<'_>, diagnostics: &mut Diagnostics) -> AdminConfig {
    let listen = fields.get(&LISTEN_AT, diagnostics);
    let specs = fields.get(&TOKENS, diagnostics);
    let state = fields.get(&STATE, diagnostics);
    let has_tokens = specs.as_ref().is_some_and(|specs| !specs.items.is_empty() || !specs.is_complete);
    let tokens = specs.map(|specs| tokens(specs, diagnostics)).unwrap_or_default();
    let config = AdminConfig { listen, tokens, state };
    // Invalid tokens are reported already.
    if !has_tokens && let Err(message) = config.checked_listen(None) {
        diagnostics.report(fields.line_of("listen"), fields.path_of("listen"), message);
    }
    config
}
