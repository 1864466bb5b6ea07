//! What the file says about tokens.

use std::collections::HashSet;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use slidegate::Verb;

use super::containers::{Item, ListOf, Listed, Mapping};
use super::field::{Field, Fields};
use super::kinds::{OneOf, PathTo, Text, Word};
use super::review::Review;
use crate::tokens::{Scope, TOKEN_BYTES, Token, Tokens, Verbs};

const NAME: Field<Text> =
    Field::new("name", Text { what: "a text" }, "Whose token it is, for logs and the audit.").required();
const TOKEN: Field<Text> = Field::new(
    "token",
    Text { what: "16 to 1024 visible ASCII characters" },
    "The token itself. Exactly one of token, token_file and token_env is given.",
);
const TOKEN_FILE: Field<PathTo> =
    Field::new("token_file", PathTo::FILE, "A file with the token in it; read again when it changes.");
const TOKEN_ENV: Field<Text> = Field::new(
    "token_env",
    Text { what: "the name of an environment variable" },
    "An environment variable with the token in it; read when the service starts.",
);
const SCOPE: Field<OneOf<Scope>> =
    Field::new("scope", OneOf::ANY, "What it allows: to look, or to look and to change.").usual("read");

const VERBS: Field<ListOf<OneOf<Verb>>> = Field::new(
    "verbs",
    ListOf { item: OneOf::ANY, what: "verbs", most: Some(Verbs::NAMES.len()) },
    "What it may be used for. Envoy's rate limit service needs check, and charge or refund for hits that are reported or given back.",
)
.usual(r#"["check", "peek"]"#);

/// More would make every request slow.
const MOST_TOKENS: usize = 1000;
const PLACES: &[&str] = &["token", "token_file", "token_env"];
const TOKEN_KIND: Mapping<Secret> = Mapping {
    fields: &[&NAME, &TOKEN, &TOKEN_FILE, &TOKEN_ENV, &VERBS],
    one_of: PLACES,
    read: secret_for_verbs,
};
const ADMIN_TOKEN: Mapping<Secret> = Mapping {
    fields: &[&NAME, &TOKEN, &TOKEN_FILE, &TOKEN_ENV, &SCOPE],
    one_of: PLACES,
    read: secret_with_scope,
};

/// Tokens for those who ask for decisions.
pub(super) const TOKENS: ListOf<Mapping<Secret>> = ListOf { item: TOKEN_KIND, what: "tokens", most: None };
/// Those for admins.
pub(super) const ADMIN_TOKENS: ListOf<Mapping<Secret>> =
    ListOf { item: ADMIN_TOKEN, what: "tokens", most: None };

/// A token as the file has it.
#[derive(Clone)]
pub(super) struct Secret {
    name: String,
    name_line: u64,
    scope: Scope,
    verbs: Verbs,
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
    Some(Secret { name, name_line, scope: Scope::default(), verbs: Verbs::ALL, place, place_line })
}

fn secret_for_verbs(fields: &Fields<'_>, review: &mut Review) -> Option<Secret> {
    let verbs = match fields.get(&VERBS, review) {
        Some(listed) if listed.is_whole && listed.items.is_empty() => {
            review.refuse(
                listed.line,
                fields.path_of("verbs"),
                "none given; a token is for at least one verb",
            );
            Verbs::default()
        }
        Some(listed) => listed.into_values().into_iter().collect(),
        None => Verbs::default(),
    };
    secret(fields, review).map(|secret| Secret { verbs, ..secret })
}

fn secret_with_scope(fields: &Fields<'_>, review: &mut Review) -> Option<Secret> {
    let scope = fields.get(&SCOPE, review).unwrap_or_default();
    secret(fields, review).map(|secret| Secret { scope, ..secret })
}

/// The tokens, each of which has another name and another secret.
pub(super) fn tokens(secrets: Listed<Secret>, review: &mut Review) -> Tokens {
    let (mut tokens, mut names): (Vec<Token>, HashSet<String>) = Default::default();
    if secrets.items.len() > MOST_TOKENS {
        let path = secrets.items.first().map_or("tokens", |item| item.path.trim_end_matches("[0]"));
        review.refuse(
            secrets.line,
            path,
            format!("more than {MOST_TOKENS}; all of them are compared each time"),
        );
        return Tokens::default();
    }
    for Item { path, value: Secret { name, name_line, scope, verbs, place, place_line }, .. } in secrets.items
    {
        let is_new = names.insert(name.clone());
        if !is_new {
            let message = format!("two tokens are called {name:?}: names must differ");
            review.refuse(name_line, format!("{path}.name"), message);
        }
        let is_elsewhere = !matches!(place, Place::Here(_));
        if let Place::File(path) = &place {
            review.token_files.push(path.clone());
        }
        if is_elsewhere && !review.looks_around {
            continue;
        }
        let made = place.read().and_then(|secret| Token::new(&name, &secret, scope));
        match made.map(|token| token.for_verbs(verbs)) {
            Err(message) => review.refuse(place_line, format!("{path}.{}", place.field()), message),
            Ok(token) => {
                if let Some(other) = tokens.iter().find(|other| other.is_same_secret(&token)) {
                    let message = format!("it is the same as that of {:?}", other.name());
                    review.refuse(place_line, format!("{path}.{}", place.field()), message);
                } else if is_new {
                    tokens.push(token);
                }
            }
        }
    }
    tokens.into_iter().collect()
}

impl Word for Verb {
    const ALL: &'static [(&'static str, Self)] = Verbs::NAMES;
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
