//! What the file says about tokens, and about the listener for those who look after the service.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, Error, MapAccess, Visitor};
use serde_saphyr::Spanned;

use super::build::{line_of, parsed};
use super::degrade::one_of;
use super::listen::Listen;
use super::problem::Problem;
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

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AdminFields {
    listen: Option<Spanned<String>>,
    tokens: Option<Vec<Spanned<AdminTokenFields>>>,
    state: Option<PathBuf>,
}

/// The whole, or the address alone.
#[derive(Debug)]
pub(super) enum AdminSpec {
    Listen(String),
    Fields(AdminFields),
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TokenFields {
    name: Spanned<String>,
    token: Option<Spanned<String>>,
    token_file: Option<Spanned<PathBuf>>,
    token_env: Option<Spanned<String>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct AdminTokenFields {
    name: Spanned<String>,
    token: Option<Spanned<String>>,
    token_file: Option<Spanned<PathBuf>>,
    token_env: Option<Spanned<String>>,
    scope: Option<Spanned<String>>,
}

pub(super) fn admin(spec: Option<Spanned<AdminSpec>>, problems: &mut Vec<Problem>) -> AdminConfig {
    let Some(spec) = spec else { return AdminConfig::default() };
    let line = line_of(&spec);
    let (listen, fields, listen_line) = match spec.value {
        AdminSpec::Listen(text) => {
            let parsed = text.parse().map_err(|message| problems.push(Problem::at(line, "admin", message)));
            (parsed.ok(), AdminFields::default(), line)
        }
        AdminSpec::Fields(fields) => {
            let listen = parsed("admin.listen", fields.listen.as_ref(), problems);
            let listen_line = fields.listen.as_ref().map_or(line, line_of);
            (listen, fields, listen_line)
        }
    };
    let before = problems.len();
    let mut read = Vec::new();
    for (index, token) in fields.tokens.into_iter().flatten().enumerate() {
        let (line, AdminTokenFields { name, token, token_file, token_env, scope }) =
            (line_of(&token), token.value);
        let path = format!("admin.tokens[{index}]");
        let scope = one_of(&format!("{path}.scope"), scope.as_ref(), problems).unwrap_or_default();
        let fields = TokenFields { name, token, token_file, token_env };
        add_token(&mut read, &path, line, &fields, scope, problems);
    }
    let config = AdminConfig { listen, tokens: read.into_iter().collect(), state: fields.state };
    // With some tokens missing, what is wrong with the whole would be said of what is not there.
    if problems.len() == before
        && let Err(message) = config.listen_at(None)
    {
        problems.push(Problem::at(listen_line, "admin.listen", message));
    }
    config
}

pub(super) fn tokens(fields: Option<Vec<Spanned<TokenFields>>>, problems: &mut Vec<Problem>) -> Tokens {
    let mut read = Vec::new();
    for (index, token) in fields.into_iter().flatten().enumerate() {
        let path = format!("tokens[{index}]");
        add_token(&mut read, &path, line_of(&token), &token.value, Scope::Read, problems);
    }
    read.into_iter().collect()
}

fn add_token(
    read: &mut Vec<Token>,
    path: &str,
    line: u64,
    fields: &TokenFields,
    scope: Scope,
    problems: &mut Vec<Problem>,
) {
    let name = &fields.name.value;
    let (part, line, secret) = match (&fields.token, &fields.token_file, &fields.token_env) {
        (Some(token), None, None) => ("token", line_of(token), Ok(token.value.clone())),
        (None, Some(file), None) => ("token_file", line_of(file), read_token(&file.value)),
        (None, None, Some(variable)) => ("token_env", line_of(variable), from_environment(&variable.value)),
        _ => {
            let message = "give exactly one of token, token_file and token_env";
            return problems.push(Problem::at(line, path, message));
        }
    };
    match secret.and_then(|secret| Token::new(name, &secret, scope)) {
        Err(message) => problems.push(Problem::at(line, format!("{path}.{part}"), message)),
        Ok(token) => {
            if read.iter().any(|other| other.name() == name) {
                let message = format!("two tokens are called {name:?}: names must differ");
                problems.push(Problem::at(line_of(&fields.name), format!("{path}.name"), message));
            } else if let Some(other) = read.iter().find(|other| other.is_same_secret(&token)) {
                let message = format!("it is the same as that of {:?}", other.name());
                problems.push(Problem::at(line, format!("{path}.{part}"), message));
            } else {
                read.push(token);
            }
        }
    }
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

impl<'de> Deserialize<'de> for AdminSpec {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(AdminVisitor)
    }
}

struct AdminVisitor;

impl<'de> Visitor<'de> for AdminVisitor {
    type Value = AdminSpec;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an address, off, or a mapping with listen, tokens and state")
    }

    fn visit_bool<E: Error>(self, is_on: bool) -> Result<AdminSpec, E> {
        // YAML takes a bare `off` for this.
        Ok(AdminSpec::Listen(if is_on { "on" } else { "off" }.to_owned()))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<AdminSpec, E> {
        Ok(AdminSpec::Listen(text.to_owned()))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<AdminSpec, A::Error> {
        AdminFields::deserialize(MapAccessDeserializer::new(map)).map(AdminSpec::Fields)
    }
}
