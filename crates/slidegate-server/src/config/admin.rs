//! What the file says about the listener for those who look after the service.

use std::path::PathBuf;

use serde_json::{Value as Json, json};

use super::containers::{ListOf, Mapping};
use super::field::{Declarations, Field, Fields, Kind, Within, mapping_schema};
use super::kinds::{Parsed, PathTo};
use super::listen::{LISTEN, Listen};
use super::review::Review;
use super::token::{ADMIN_TOKENS, Secret, tokens};
use super::tree::{Node, Value};
use crate::tokens::Tokens;

/// The listener for those who look after the service.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AdminConfig {
    /// Where it is.
    pub listen: Option<Listen>,
    /// Who may use it.
    pub tokens: Tokens,
    /// Where changes are kept if the store is memory.
    pub state: Option<PathBuf>,
}

impl AdminConfig {
    /// Whether both are the same in all that is settled at a start.
    pub(super) fn is_fixed_like(&self, other: &Self) -> bool {
        let fixed = |config: &Self| (config.listen.clone(), config.state.clone(), config.tokens.is_empty());
        fixed(self) == fixed(other)
    }

    /// Where to listen, or why that must not be. An `address` by flag goes over the file's.
    pub fn listen_at(&self, address: Option<Listen>) -> Result<Listen, String> {
        let listen = match address.or_else(|| self.listen.clone()) {
            Some(listen) => listen,
            None => Listen::admin(),
        };
        match listen.address() {
            Some(address) if self.tokens.is_empty() && !address.is_loopback() => Err(format!(
                "{address} can be reached from elsewhere, and there are no tokens; give admin.tokens, or listen on \
                 127.0.0.1"
            )),
            _ => Ok(listen),
        }
    }
}

const LISTEN_AT: Field<Parsed<Listen>> = Field::new("listen", LISTEN, "Where it is.").usual("127.0.0.1:8082");
const TOKENS: Field<ListOf<Mapping<Secret>>> =
    Field::new("tokens", ADMIN_TOKENS, "Who may use it. Without any, it may listen on loopback only.")
        .otherwise("nobody needs one");
const STATE: Field<PathTo> = Field::new(
    "state",
    PathTo::FILE,
    "Where changes are kept if the store is memory. Its folder has to exist.",
)
.otherwise("in one of four places, see admin.md");

const FIELDS: Declarations = &[&LISTEN_AT, &TOKENS, &STATE];

/// The whole, or the address alone.
#[derive(Clone, Copy)]
pub(super) struct AdminKind;

impl Kind for AdminKind {
    type Value = AdminConfig;

    fn read(&self, node: &Node, path: &str, review: &mut Review) -> Option<AdminConfig> {
        match &node.value {
            Value::Map(_) => {
                Mapping { fields: FIELDS, one_of: &[], read: |fields, review| Some(admin(fields, review)) }
                    .read(node, path, review)
            }
            Value::Scalar { .. } if !node.is_nothing() => {
                let listen = LISTEN.read(node, path, review)?;
                let config = AdminConfig { listen: Some(listen), ..AdminConfig::default() };
                if let Err(message) = config.listen_at(None) {
                    review.refuse(node.line, path, message);
                }
                Some(config)
            }
            _ => {
                review.refuse(node.line, path, format!("expected {}, not {}", self.allowed(), node.kind()));
                None
            }
        }
    }

    fn schema(&self) -> Json {
        json!({"anyOf": [LISTEN.schema(), mapping_schema(FIELDS)]})
    }

    fn allowed(&self) -> String {
        format!("{}, or a mapping with listen, tokens and state", LISTEN.allowed())
    }

    fn within(&self) -> Within {
        Within { step: "", fields: FIELDS }
    }
}

fn admin(fields: &Fields<'_>, review: &mut Review) -> AdminConfig {
    let listen = fields.get(&LISTEN_AT, review);
    let secrets = fields.get(&TOKENS, review);
    let state = fields.get(&STATE, review);
    let has_tokens = secrets.as_ref().is_some_and(|secrets| !secrets.items.is_empty() || !secrets.is_whole);
    let tokens = secrets.map(|secrets| tokens(secrets, review)).unwrap_or_default();
    let config = AdminConfig { listen, tokens, state };
    // Whoever has given tokens that are wrong has been told so.
    if !has_tokens && let Err(message) = config.listen_at(None) {
        review.refuse(fields.line_of("listen"), fields.path_of("listen"), message);
    }
    config
}
