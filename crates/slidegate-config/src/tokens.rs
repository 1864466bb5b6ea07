//! Bearer tokens. Only the hash of a token is kept.

use std::fmt;

use slidegate::Verb;

/// Length of a token in bytes. Shorter tokens can be guessed; longer ones do not fit the head of a request.
pub(crate) const TOKEN_BYTES: std::ops::RangeInclusive<usize> = 16..=1024;

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
pub struct Verbs(u32);

impl Verbs {
    /// All verbs.
    pub const ALL: Self = Self(u32::MAX);

    /// Returns whether `verb` is one of these verbs.
    pub fn has(self, verb: Verb) -> bool {
        self.0 & Self::of(verb).0 != 0
    }

    fn of(verb: Verb) -> Self {
        let position = Verb::ALL.iter().position(|known| *known == verb);
        Self(position.map_or(0, |position| 1 << position))
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
        let names = Verb::ALL.iter().filter(|verb| self.has(**verb)).map(|verb| verb.name());
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

    /// Returns the verbs that the token may use.
    pub fn verbs(&self) -> Verbs {
        self.verbs
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
    pub fn is_same_secret(&self, other: &Self) -> bool {
        self.hash == other.hash
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Token").field("name", &self.name).field("scope", &self.scope).finish_non_exhaustive()
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

    /// Finds the token of an `Authorization` header.
    pub fn find_by_authorization(&self, authorization: &[u8]) -> Option<&Token> {
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
            tokens.find_by_authorization(header.as_bytes()).map(|token| (token.name(), token.scope()))
        };
        assert_eq!(find("Bearer 0123456789abcdef"), Some(("app", Scope::Read)));
        assert_eq!(find("bearer  fedcba9876543210"), Some(("ops", Scope::Write)));
        for header in ["", "Bearer", "Bearer ", "Basic 0123456789abcdef", SECRET, "Bearer 0123456789abcde"] {
            assert_eq!(find(header), None, "{header}");
        }
        assert_eq!(Tokens::default().find_by_secret(SECRET.as_bytes()), None);
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
}
