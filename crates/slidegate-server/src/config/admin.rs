//! What the file says about tokens, and about the listener for those who look after the service.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use serde_json::{Value as Json, json};

use super::containers::{Item, ListOf, Listed, Mapping};
use super::field::{Declarations, Field, Fields, Kind, Within, mapping_schema};
use super::kinds::{FilePath, OneOf, Parsed, Text, Word};
use super::listen::{LISTEN, Listen};
use super::review::Review;
use super::tree::{Node, Value};
use crate::tokens::{Scope, TOKEN_BYTES, Token, Tokens};

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

const NAME: Field<Text> =
    Field::new("name", Text { what: "a text" }, "Whose token it is, for logs and the audit.").required();
const TOKEN: Field<Text> = Field::new(
    "token",
    Text { what: "16 to 1024 visible ASCII characters" },
    "The token itself. Exactly one of token, token_file and token_env is given.",
);
const TOKEN_FILE: Field<FilePath> =
    Field::new("token_file", FilePath, "A file with the token in it; read when the service starts.");
const TOKEN_ENV: Field<Text> = Field::new(
    "token_env",
    Text { what: "the name of an environment variable" },
    "An environment variable with the token in it; read when the service starts.",
);
const SCOPE: Field<OneOf<Scope>> =
    Field::new("scope", OneOf::ANY, "What it allows: to look, or to look and to change.").usual("read");

/// More would make every request slow.
const MOST_TOKENS: usize = 1000;
const PLACES: &[&str] = &["token", "token_file", "token_env"];
const TOKEN_KIND: Mapping<Secret> =
    Mapping { fields: &[&NAME, &TOKEN, &TOKEN_FILE, &TOKEN_ENV], one_of: PLACES, read: secret };
const ADMIN_TOKEN: Mapping<Secret> = Mapping {
    fields: &[&NAME, &TOKEN, &TOKEN_FILE, &TOKEN_ENV, &SCOPE],
    one_of: PLACES,
    read: secret_with_scope,
};

/// Tokens for those who ask for decisions.
pub(super) const TOKENS: ListOf<Mapping<Secret>> = ListOf { item: TOKEN_KIND, what: "tokens", most: None };

const LISTEN_AT: Field<Parsed<Listen>> = Field::new("listen", LISTEN, "Where it is.").usual("127.0.0.1:8082");
const ADMIN_TOKENS: Field<ListOf<Mapping<Secret>>> = Field::new(
    "tokens",
    ListOf { item: ADMIN_TOKEN, what: "tokens", most: None },
    "Who may use it. Without any, it may listen on loopback only.",
);
const STATE: Field<FilePath> =
    Field::new("state", FilePath, "Where changes are kept if the store is memory.");

const ADMIN_FIELDS: Declarations = &[&LISTEN_AT, &ADMIN_TOKENS, &STATE];

/// The whole, or the address alone.
#[derive(Clone, Copy)]
pub(super) struct AdminKind;

impl Kind for AdminKind {
    type Value = AdminConfig;

    fn read(&self, node: &Node, path: &str, review: &mut Review) -> Option<AdminConfig> {
        match &node.value {
            Value::Map(_) => Mapping {
                fields: ADMIN_FIELDS,
                one_of: &[],
                read: |fields, review| Some(admin(fields, review)),
            }
            .read(node, path, review),
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
        json!({"anyOf": [LISTEN.schema(), mapping_schema(ADMIN_FIELDS)]})
    }

    fn allowed(&self) -> String {
        format!("{}, or a mapping with listen, tokens and state", LISTEN.allowed())
    }

    fn within(&self) -> Within {
        Within { step: "", fields: ADMIN_FIELDS }
    }
}

fn admin(fields: &Fields<'_>, review: &mut Review) -> AdminConfig {
    let listen = fields.get(&LISTEN_AT, review);
    let secrets = fields.get(&ADMIN_TOKENS, review);
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

/// A token as the file has it.
#[derive(Clone)]
pub(super) struct Secret {
    name: String,
    name_line: u64,
    scope: Scope,
    place: Place,
    place_line: u64,
}

#[derive(Clone)]
enum Place {
    Here(String),
    File(PathBuf),
    Environment(String),
}

impl Place {
    fn field(&self) -> &'static str {
        match self {
            Self::Here(_) => "token",
            Self::File(_) => "token_file",
            Self::Environment(_) => "token_env",
        }
    }

    fn read(&self) -> Result<String, String> {
        match self {
            Self::Here(secret) => Ok(secret.clone()),
            Self::File(path) => read_token(path),
            Self::Environment(variable) => from_environment(variable),
        }
    }
}

fn secret(fields: &Fields<'_>, review: &mut Review) -> Option<Secret> {
    let name = fields.get(&NAME, review);
    let given = [fields.has(&TOKEN), fields.has(&TOKEN_FILE), fields.has(&TOKEN_ENV)];
    let place = match given {
        [true, false, false] => fields.get(&TOKEN, review).map(Place::Here),
        [false, true, false] => fields.get(&TOKEN_FILE, review).map(Place::File),
        [false, false, true] => fields.get(&TOKEN_ENV, review).map(Place::Environment),
        _ => None,
    };
    let (name, place) = (name?, place?);
    let (name_line, place_line) = (fields.line_of("name"), fields.line_of(place.field()));
    Some(Secret { name, name_line, scope: Scope::default(), place, place_line })
}

fn secret_with_scope(fields: &Fields<'_>, review: &mut Review) -> Option<Secret> {
    let scope = fields.get(&SCOPE, review).unwrap_or_default();
    secret(fields, review).map(|secret| Secret { scope, ..secret })
}

/// The tokens, each of which has another name and another secret.
pub(super) fn tokens(secrets: Listed<Secret>, review: &mut Review) -> Tokens {
    let mut tokens: Vec<Token> = Vec::new();
    if secrets.items.len() > MOST_TOKENS {
        let path = secrets.items.first().map_or("tokens", |item| item.path.trim_end_matches("[0]"));
        review.refuse(
            secrets.line,
            path,
            format!("more than {MOST_TOKENS}; all of them are compared each time"),
        );
        return Tokens::default();
    }
    for Item { path, value: Secret { name, name_line, scope, place, place_line }, .. } in secrets.items {
        let is_elsewhere = !matches!(place, Place::Here(_));
        if is_elsewhere && !review.looks_around {
            continue;
        }
        match place.read().and_then(|secret| Token::new(&name, &secret, scope)) {
            Err(message) => review.refuse(place_line, format!("{path}.{}", place.field()), message),
            Ok(token) => {
                if tokens.iter().any(|other| other.name() == name) {
                    let message = format!("two tokens are called {name:?}: names must differ");
                    review.refuse(name_line, format!("{path}.name"), message);
                } else if let Some(other) = tokens.iter().find(|other| other.is_same_secret(&token)) {
                    let message = format!("it is the same as that of {:?}", other.name());
                    review.refuse(place_line, format!("{path}.{}", place.field()), message);
                } else {
                    tokens.push(token);
                }
            }
        }
    }
    tokens.into_iter().collect()
}

impl Word for Scope {
    const ALL: &'static [(&'static str, Self)] = &[("read", Self::Read), ("write", Self::Write)];
}

/// What is in the file, without the end of its line. No more is read than a token may have.
fn read_token(path: &Path) -> Result<String, String> {
    let mut text = String::new();
    let most = *TOKEN_BYTES.end() as u64 + 3;
    File::open(path)
        .and_then(|file| file.take(most).read_to_string(&mut text))
        .map_err(|error| format!("{} cannot be read: {error}", path.display()))?;
    let text = text.strip_suffix('\n').unwrap_or(&text);
    Ok(text.strip_suffix('\r').unwrap_or(text).to_owned())
}

fn from_environment(variable: &str) -> Result<String, String> {
    match std::env::var(variable) {
        Ok(secret) => Ok(secret.trim_end_matches(['\r', '\n']).to_owned()),
        Err(std::env::VarError::NotPresent) => Err(format!("the environment has no {variable:?}")),
        Err(std::env::VarError::NotUnicode(_)) => Err(format!("{variable:?} is not UTF-8")),
    }
}
