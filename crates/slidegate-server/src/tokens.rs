//! Authentication and authorization by bearer tokens, which are kept as hashes.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::ArcSwap;
use axum::http::header::AUTHORIZATION;
use axum::http::{HeaderMap, HeaderValue};
use slidegate::Verb;

use crate::request::{Rejection, RejectionKind};

/// Length of a token in bytes. Shorter tokens can be guessed; longer ones do not fit the head of a request.
pub(crate) const TOKEN_BYTES: std::ops::RangeInclusive<usize> = 16..=1024;

/// Header for proxies, which forward the `Authorization` of their clients.
const TOKEN_HEADER: &str = "x-slidegate-token";

/// Scope of a token in the admin API.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scope {
    /// Read-only requests.
    #[default]
    Read,
    /// All requests.
    Write,
}

/// Verbs that a token of the data plane may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verbs(u8);

impl Verbs {
    /// Verbs with their names in the configuration.
    pub(crate) const NAMES: &'static [(&'static str, Verb)] = &[
        ("check", Verb::Check),
        ("peek", Verb::Peek),
        ("charge", Verb::Charge),
        ("refund", Verb::Refund),
        ("reset", Verb::Reset),
        ("block", Verb::Block),
    ];
    /// All verbs.
    pub const ALL: Self = Self(u8::MAX);

    /// Returns whether `verb` is one of these verbs.
    pub fn has(self, verb: Verb) -> bool {
        self.0 & Self::of(verb).0 != 0
    }

    fn of(verb: Verb) -> Self {
        let place = Self::NAMES.iter().position(|(_, other)| *other == verb);
        Self(place.map_or(0, |place| 1 << place))
    }
}

/// Check and peek, which suffice for an application.
impl Default for Verbs {
    fn default() -> Self {
        [Verb::Check, Verb::Peek].into_iter().collect()
    }
}

impl FromIterator<Verb> for Verbs {
    fn from_iter<I: IntoIterator<Item = Verb>>(verbs: I) -> Self {
        Self(verbs.into_iter().fold(0, |bits, verb| bits | Self::of(verb).0))
    }
}

/// Formats the verbs as `check, peek`.
impl fmt::Display for Verbs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = Self::NAMES.iter().filter(|(_, verb)| self.has(*verb)).map(|(name, _)| *name);
        f.write_str(&names.collect::<Vec<_>>().join(", "))
    }
}

/// A named token with its permissions. Only the hash of the secret is kept.
#[derive(Clone, PartialEq, Eq)]
pub struct Token {
    name: String,
    hash: blake3::Hash,
    scope: Scope,
    verbs: Verbs,
}

impl Token {
    /// Returns a token for all verbs. An error does not repeat the secret.
    pub fn new(name: impl Into<String>, secret: &str, scope: Scope) -> Result<Self, String> {
        let (least, most) = (TOKEN_BYTES.start(), TOKEN_BYTES.end());
        if !TOKEN_BYTES.contains(&secret.len()) {
            return Err(format!("it has {} bytes; {least} to {most} are allowed", secret.len()));
        }
        if !secret.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err("only visible ASCII characters are allowed, and no spaces".to_owned());
        }
        Ok(Self { name: name.into(), hash: blake3::hash(secret.as_bytes()), scope, verbs: Verbs::ALL })
    }

    /// Restricts the token to `verbs`.
    #[must_use]
    pub fn for_verbs(self, verbs: Verbs) -> Self {
        Self { verbs, ..self }
    }

    /// Checks that the token may use a verb.
    pub(crate) fn admit(&self, verb: Verb) -> Result<(), Rejection> {
        if self.verbs.has(verb) {
            return Ok(());
        }
        let detail = format!(
            "the token {:?} may not {}; the configuration allows it {}",
            self.name,
            Verbs(Verbs::of(verb).0),
            self.verbs
        );
        Err(Rejection::new(RejectionKind::Forbidden, detail))
    }

    /// Returns the name, for logs.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the scope in the admin API.
    pub fn scope(&self) -> Scope {
        self.scope
    }

    /// Returns whether both tokens have the same secret.
    pub(crate) fn is_same_secret(&self, other: &Self) -> bool {
        self.hash == other.hash
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Token").field("name", &self.name).field("scope", &self.scope).finish_non_exhaustive()
    }
}

/// Credentials in the headers of a request. Of several headers with one name, the first is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Credentials<'a> {
    authorization: Option<&'a [u8]>,
    token: Option<&'a [u8]>,
}

impl<'a> Credentials<'a> {
    /// Sets the value of `Authorization`.
    pub(crate) fn add_authorization(&mut self, value: &'a [u8]) {
        self.authorization.get_or_insert(value);
    }

    /// Sets the value of `X-Slidegate-Token`.
    pub(crate) fn add_token(&mut self, value: &'a [u8]) {
        self.token.get_or_insert(value);
    }
}

impl<'a> From<&'a HeaderMap> for Credentials<'a> {
    fn from(headers: &'a HeaderMap) -> Self {
        let authorization = headers.get(AUTHORIZATION).map(HeaderValue::as_bytes);
        Self { authorization, token: headers.get(TOKEN_HEADER).map(HeaderValue::as_bytes) }
    }
}

/// Valid tokens of a listener.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tokens(Vec<Token>);

impl Tokens {
    /// Returns whether there are no tokens.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns all tokens.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Token> {
        self.0.iter()
    }

    /// Checks that the credentials are a token for the verb. `X-Slidegate-Token` is used if `Authorization` has no token.
    fn admit<'a>(&self, credentials: impl Into<Credentials<'a>>, verb: Verb) -> Result<(), Rejection> {
        let Credentials { authorization, token } = credentials.into();
        let by_token_header = || token.and_then(|secret| self.find_by_secret(secret));
        let by_authorization = authorization.and_then(|value| self.find_by_authorization(value));
        if let Some(token) = by_authorization.or_else(by_token_header) {
            return token.admit(verb);
        }
        let problem = if authorization.is_some() || token.is_some() {
            "the credentials are not a valid token"
        } else {
            "the request has no token"
        };
        let detail = format!(
            "{problem}; send Authorization: Bearer TOKEN, or X-Slidegate-Token: TOKEN if Authorization is in use for \
             another service"
        );
        Err(Rejection::new(RejectionKind::Unauthorized, detail))
    }

    /// Finds the token of an `Authorization` header.
    pub fn find_bearer(&self, authorization: Option<&HeaderValue>) -> Option<&Token> {
        self.find_by_authorization(authorization?.as_bytes())
    }

    fn find_by_authorization(&self, authorization: &[u8]) -> Option<&Token> {
        let (scheme, secret) = authorization.split_at_checked("Bearer ".len())?;
        if !scheme.eq_ignore_ascii_case(b"Bearer ") {
            return None;
        }
        self.find_by_secret(secret.trim_ascii())
    }

    /// Finds the token with a secret. Its duration does not depend on the result: it compares all hashes, each in constant
    /// time.
    pub fn find_by_secret(&self, secret: &[u8]) -> Option<&Token> {
        // Bounds the work for a long secret, which is not a valid token.
        let hash = blake3::hash(secret.get(..=*TOKEN_BYTES.end()).unwrap_or(secret));
        let mut found = None;
        for token in &self.0 {
            if token.hash == hash {
                found = Some(token);
            }
        }
        found
    }
}

/// Authenticates requests by tokens, which a reload can replace. Whether tokens are required is fixed at startup.
#[derive(Debug)]
pub struct Authenticator {
    allows_anonymous: bool,
    tokens: ArcSwap<Tokens>,
    /// Number of replacements.
    generation: AtomicU64,
}

impl Authenticator {
    /// Requires one of `tokens`, or none if there are none.
    pub fn new(tokens: Tokens) -> Self {
        Self {
            allows_anonymous: tokens.is_empty(),
            tokens: ArcSwap::from_pointee(tokens),
            generation: AtomicU64::new(0),
        }
    }

    /// Returns whether requests need no token.
    pub fn allows_anonymous(&self) -> bool {
        self.allows_anonymous
    }

    /// Returns the currently valid tokens.
    pub fn tokens(&self) -> Arc<Tokens> {
        self.tokens.load_full()
    }

    /// Replaces the tokens. An incomplete file neither removes the requirement of a token nor adds it: the call has no
    /// effect if tokens were not required at startup, or if `tokens` is empty.
    pub(crate) fn replace(&self, tokens: &Tokens) {
        if self.allows_anonymous || tokens.is_empty() || **self.tokens.load() == *tokens {
            return;
        }
        self.tokens.store(Arc::new(tokens.clone()));
        self.generation.fetch_add(1, Ordering::Release);
    }

    /// Returns a number that changes with each replacement. An open connection compares it to authenticate again.
    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Checks that a request may use a verb.
    #[inline]
    pub(crate) fn admit<'a>(
        &self,
        credentials: impl Into<Credentials<'a>>,
        verb: Verb,
    ) -> Result<(), Rejection> {
        if self.allows_anonymous {
            return Ok(());
        }
        self.tokens.load().admit(credentials, verb)
    }
}

impl FromIterator<Token> for Tokens {
    fn from_iter<I: IntoIterator<Item = Token>>(tokens: I) -> Self {
        Self(tokens.into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &str = "0123456789abcdef";

    #[test]
    fn a_token_is_found_by_its_exact_secret() {
        let tokens: Tokens = [
            Token::new("app", SECRET, Scope::Read).unwrap(),
            Token::new("ops", "fedcba9876543210", Scope::Write).unwrap(),
        ]
        .into_iter()
        .collect();
        let find = |header: &str| {
            let header = HeaderValue::from_str(header).unwrap();
            tokens.find_bearer(Some(&header)).map(|token| (token.name(), token.scope()))
        };
        assert_eq!(find("Bearer 0123456789abcdef"), Some(("app", Scope::Read)));
        assert_eq!(find("bearer  fedcba9876543210"), Some(("ops", Scope::Write)));
        for header in ["", "Bearer", "Bearer ", "Basic 0123456789abcdef", SECRET, "Bearer 0123456789abcde"] {
            assert_eq!(find(header), None, "{header}");
        }
        assert_eq!(tokens.find_bearer(None), None);
        assert_eq!(Tokens::default().find_by_secret(SECRET.as_bytes()), None);
    }

    #[test]
    fn a_reload_never_changes_whether_tokens_are_required() {
        let of = |name: &str, secret: &str| -> Tokens {
            [Token::new(name, secret, Scope::Read).unwrap()].into_iter().collect()
        };
        let credentials =
            |secret: &'static str| Credentials { token: Some(secret.as_bytes()), ..Credentials::default() };
        let authenticator = Authenticator::new(of("old", SECRET));
        authenticator.replace(&Tokens::default());
        assert!(
            authenticator.admit(credentials(SECRET), Verb::Check).is_ok()
                && authenticator.admit(Credentials::default(), Verb::Check).is_err()
        );
        authenticator.replace(&of("old", SECRET));
        assert_eq!(authenticator.generation(), 0, "equal tokens are not a replacement");
        authenticator.replace(&of("new", "fedcba9876543210"));
        assert!(
            authenticator.admit(credentials(SECRET), Verb::Check).is_err()
                && authenticator.admit(credentials("fedcba9876543210"), Verb::Check).is_ok()
        );
        assert_eq!(authenticator.generation(), 1);
        let open = Authenticator::new(Tokens::default());
        open.replace(&of("new", SECRET));
        assert!(open.admit(Credentials::default(), Verb::Check).is_ok());
    }

    #[test]
    fn weak_secrets_are_rejected_and_no_secret_is_printed() {
        for secret in ["", "short", "with a space in it", "größergrößergrößer", &"a".repeat(1025)] {
            let error = Token::new("app", secret, Scope::Read).unwrap_err();
            assert!(secret.is_empty() || !error.contains(secret), "{error}");
        }
        let debug = format!("{:?}", Token::new("app", SECRET, Scope::Read).unwrap());
        let hash = blake3::hash(SECRET.as_bytes()).to_hex();
        assert!(debug.contains("app") && !debug.contains(SECRET) && !debug.contains(&hash[..8]), "{debug}");
    }

    #[test]
    fn a_token_is_restricted_to_its_verbs() {
        let token = Token::new("app", SECRET, Scope::Read).unwrap();
        for (_, verb) in Verbs::NAMES {
            assert!(token.admit(*verb).is_ok());
            let is_default = matches!(verb, Verb::Check | Verb::Peek);
            let restricted = token.clone().for_verbs(Verbs::default());
            assert_eq!(restricted.admit(*verb).is_ok(), is_default, "{verb:?}");
            assert!(token.clone().for_verbs([*verb].into_iter().collect()).admit(*verb).is_ok());
        }
        let rejection = token.for_verbs(Verbs::default()).admit(Verb::Reset).unwrap_err();
        assert_eq!(
            rejection.to_string(),
            "the token \"app\" may not reset; the configuration allows it check, peek"
        );
    }
}
