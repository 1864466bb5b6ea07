//! Lists of tokens, for clients and for the admin API.

use std::collections::HashSet;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use slidegate::Verb;

use crate::fields::containers::{ListItem, ListItems, ListOf, Mapping};
use crate::fields::diagnostics::Diagnostics;
use crate::fields::field::{Field, Fields};
use crate::fields::scalars::{FsPath, Keyword, OneOf, Text};
use crate::tokens::{Scope, TOKEN_BYTES, Token, Tokens, Verbs};

const NAME: Field<Text> =
    Field::new("name", Text { noun: "a text" }, "Name of the token, for logs and the audit log.").required();
const TOKEN: Field<Text> = Field::new(
    "token",
    Text { noun: "16 to 1024 visible ASCII characters" },
    "The token itself. Give exactly one of token, token_file and token_env.",
);
const TOKEN_FILE: Field<FsPath> =
    Field::new("token_file", FsPath::FILE, "File that contains the token; read again when it changes.");
const TOKEN_ENV: Field<Text> = Field::new(
    "token_env",
    Text { noun: "the name of an environment variable" },
    "Environment variable that contains the token; read at start.",
);
const SCOPE: Field<OneOf<Scope>> =
    Field::new("scope", OneOf::ANY, "Access that the token grants: read, or write, which includes read.")
        .with_default("read");

const VERBS: Field<ListOf<OneOf<Verb>>> = Field::new(
    "verbs",
    ListOf { item: OneOf::ANY, noun: "verbs", max_items: Some(Verb::ALL.len()) },
    "Verbs that the token may use. Envoy's rate limit service needs check, charge for reported hits, and refund for \
     negative hits.",
)
.with_default(r#"["check", "peek"]"#);

/// Maximum number of tokens. Each request is compared with all of them.
const MAX_TOKENS: usize = 1000;
const SOURCES: &[&str] = &["token", "token_file", "token_env"];
const TOKEN_KIND: Mapping<TokenSpec> = Mapping {
    fields: &[&NAME, &TOKEN, &TOKEN_FILE, &TOKEN_ENV, &VERBS],
    one_of: SOURCES,
    read: token_for_verbs,
};
const ADMIN_TOKEN: Mapping<TokenSpec> = Mapping {
    fields: &[&NAME, &TOKEN, &TOKEN_FILE, &TOKEN_ENV, &SCOPE],
    one_of: SOURCES,
    read: token_with_scope,
};

/// Tokens of clients.
pub(crate) const TOKENS: ListOf<Mapping<TokenSpec>> =
    ListOf { item: TOKEN_KIND, noun: "tokens", max_items: None };
/// Tokens of the admin API.
pub(crate) const ADMIN_TOKENS: ListOf<Mapping<TokenSpec>> =
    ListOf { item: ADMIN_TOKEN, noun: "tokens", max_items: None };

/// Token as the file writes it.
#[derive(Clone)]
pub(crate) struct TokenSpec {
    name: String,
    name_line: u64,
    scope: Scope,
    verbs: Verbs,
    source: TokenSource,
    source_line: u64,
}

#[derive(Clone)]
enum TokenSource {
    Inline(String),
    File(PathBuf),
    Environment(String),
}

impl TokenSource {
    fn field(&self) -> &'static str {
        match self {
            Self::Inline(_) => "token",
            Self::File(_) => "token_file",
            Self::Environment(_) => "token_env",
        }
    }

    fn read(&self) -> Result<String, String> {
        match self {
            Self::Inline(secret) => Ok(secret.clone()),
            Self::File(path) => read_token(path),
            Self::Environment(variable) => from_environment(variable),
        }
    }
}

fn token_spec(fields: &Fields<'_>, diagnostics: &mut Diagnostics) -> Option<TokenSpec> {
    let name = fields.get(&NAME, diagnostics);
    let given = [fields.has(&TOKEN), fields.has(&TOKEN_FILE), fields.has(&TOKEN_ENV)];
    let source = match given {
        [true, false, false] => fields.get(&TOKEN, diagnostics).map(TokenSource::Inline),
        [false, true, false] => fields.get(&TOKEN_FILE, diagnostics).map(TokenSource::File),
        [false, false, true] => fields.get(&TOKEN_ENV, diagnostics).map(TokenSource::Environment),
        _ => None,
    };
    let (name, source) = (name?, source?);
    let (name_line, source_line) = (fields.line_of("name"), fields.line_of(source.field()));
    Some(TokenSpec { name, name_line, scope: Scope::default(), verbs: Verbs::ALL, source, source_line })
}

fn token_for_verbs(fields: &Fields<'_>, diagnostics: &mut Diagnostics) -> Option<TokenSpec> {
    let verbs = match fields.get(&VERBS, diagnostics) {
        Some(listed) if listed.is_complete && listed.items.is_empty() => {
            diagnostics.report(
                listed.line,
                fields.path_of("verbs"),
                "the list is empty; a token needs at least one verb",
            );
            Verbs::default()
        }
        Some(listed) => listed.into_values().into_iter().collect(),
        None => Verbs::default(),
    };
    token_spec(fields, diagnostics).map(|spec| TokenSpec { verbs, ..spec })
}

fn token_with_scope(fields: &Fields<'_>, diagnostics: &mut Diagnostics) -> Option<TokenSpec> {
    let scope = fields.get(&SCOPE, diagnostics).unwrap_or_default();
    token_spec(fields, diagnostics).map(|spec| TokenSpec { scope, ..spec })
}

/// Reads the tokens, and reports names and secrets that occur twice.
pub(crate) fn tokens(specs: ListItems<TokenSpec>, diagnostics: &mut Diagnostics) -> Tokens {
    let (mut tokens, mut names): (Vec<Token>, HashSet<String>) = Default::default();
    if specs.items.len() > MAX_TOKENS {
        let path = specs.items.first().map_or("tokens", |item| item.path.trim_end_matches("[0]"));
        diagnostics.report(
            specs.line,
            path,
            format!("more than {MAX_TOKENS} tokens; each request is compared with all of them"),
        );
        return Tokens::default();
    }
    for ListItem { path, value: TokenSpec { name, name_line, scope, verbs, source, source_line }, .. } in
        specs.items
    {
        let is_new = names.insert(name.clone());
        if !is_new {
            let message = format!("two tokens have the name {name:?}; names must differ");
            diagnostics.report(name_line, format!("{path}.name"), message);
        }
        let is_elsewhere = !matches!(source, TokenSource::Inline(_));
        if let TokenSource::File(path) = &source {
            diagnostics.token_files.push(path.clone());
        }
        if is_elsewhere && !diagnostics.follows_references {
            continue;
        }
        let token = source.read().and_then(|secret| Token::new(&name, &secret, scope));
        match token.map(|token| token.for_verbs(verbs)) {
            Err(message) => diagnostics.report(source_line, format!("{path}.{}", source.field()), message),
            Ok(token) => {
                if let Some(other) = tokens.iter().find(|other| other.is_same_secret(&token)) {
                    let message = format!("the same token as {:?}; tokens must differ", other.name());
                    diagnostics.report(source_line, format!("{path}.{}", source.field()), message);
                } else if is_new {
                    tokens.push(token);
                }
            }
        }
    }
    tokens.into_iter().collect()
}

impl Keyword for Verb {
    fn all() -> impl Iterator<Item = (&'static str, Self)> {
        Self::ALL.iter().map(|verb| (verb.name(), *verb))
    }
}

impl Keyword for Scope {
    fn all() -> impl Iterator<Item = (&'static str, Self)> {
        [("read", Self::Read), ("write", Self::Write)].into_iter()
    }
}

/// Reads a token from a file, without its line end. Reads at most the length of a token.
fn read_token(path: &Path) -> Result<String, String> {
    let mut text = String::new();
    // Two bytes for a line end, and one to detect a longer token.
    let max_bytes = *TOKEN_BYTES.end() as u64 + 3;
    File::open(path)
        .and_then(|file| file.take(max_bytes).read_to_string(&mut text))
        .map_err(|error| format!("{} cannot be read: {error}", path.display()))?;
    let text = text.strip_suffix('\n').unwrap_or(&text);
    Ok(text.strip_suffix('\r').unwrap_or(text).to_owned())
}

fn from_environment(variable: &str) -> Result<String, String> {
    match std::env::var(variable) {
        Ok(secret) => Ok(secret.trim_end_matches(['\r', '\n']).to_owned()),
        Err(std::env::VarError::NotPresent) => {
            Err(format!("the environment variable {variable:?} is not set"))
        }
        Err(std::env::VarError::NotUnicode(_)) => Err(format!("{variable:?} is not UTF-8")),
    }
}
