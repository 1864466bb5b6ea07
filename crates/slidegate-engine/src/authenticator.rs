//! Authentication and authorization by bearer tokens.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::ArcSwap;
use slidegate::Verb;
use slidegate_config::{Token, Tokens, Verbs};

use crate::request::{Rejection, RejectionKind};

/// Credentials in the headers of a request. Of several headers with one name, the first is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Credentials<'a> {
    authorization: Option<&'a [u8]>,
    token: Option<&'a [u8]>,
}

impl<'a> Credentials<'a> {
    /// Sets the value of `Authorization`.
    pub fn add_authorization(&mut self, value: &'a [u8]) {
        self.authorization.get_or_insert(value);
    }

    /// Sets the value of `X-Slidegate-Token`.
    pub fn add_token(&mut self, value: &'a [u8]) {
        self.token.get_or_insert(value);
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
    pub fn replace(&self, tokens: &Tokens) {
        if self.allows_anonymous || tokens.is_empty() || **self.tokens.load() == *tokens {
            return;
        }
        self.tokens.store(Arc::new(tokens.clone()));
        self.generation.fetch_add(1, Ordering::Release);
    }

    /// Returns a number that changes with each replacement. An open connection compares it to authenticate again.
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Checks that a request may use a verb.
    #[inline]
    pub fn admit(&self, credentials: Credentials<'_>, verb: Verb) -> Result<(), Rejection> {
        if self.allows_anonymous {
            return Ok(());
        }
        authenticate(&self.tokens.load(), credentials, verb)
    }
}

/// Checks that a token may use a verb.
pub fn authorize(token: &Token, verb: Verb) -> Result<(), Rejection> {
    if token.verbs().has(verb) {
        return Ok(());
    }
    let detail = format!(
        "the token {:?} may not {}; the configuration allows it {}",
        token.name(),
        Verbs::from_iter([verb]),
        token.verbs()
    );
    Err(Rejection::new(RejectionKind::Forbidden, detail))
}

/// Checks that the credentials are a token for the verb. `X-Slidegate-Token` is used if `Authorization` has no token.
fn authenticate(tokens: &Tokens, credentials: Credentials<'_>, verb: Verb) -> Result<(), Rejection> {
    let Credentials { authorization, token } = credentials;
    let by_token_header = || token.and_then(|secret| tokens.find_by_secret(secret));
    let by_authorization = authorization.and_then(|value| tokens.find_by_authorization(value));
    if let Some(token) = by_authorization.or_else(by_token_header) {
        return authorize(token, verb);
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

#[cfg(test)]
mod tests {
    use slidegate_config::Scope;

    use super::*;

    const SECRET: &str = "0123456789abcdef";

    #[test]
    fn a_reload_never_changes_whether_tokens_are_required() {
        let tokens = |name: &str, secret: &str| -> Tokens {
            [Token::new(name, secret, Scope::Read).unwrap()].into_iter().collect()
        };
        let credentials =
            |secret: &'static str| Credentials { token: Some(secret.as_bytes()), ..Credentials::default() };
        let authenticator = Authenticator::new(tokens("old", SECRET));
        authenticator.replace(&Tokens::default());
        assert!(
            authenticator.admit(credentials(SECRET), Verb::Check).is_ok()
                && authenticator.admit(Credentials::default(), Verb::Check).is_err()
        );
        authenticator.replace(&tokens("old", SECRET));
        assert_eq!(authenticator.generation(), 0, "equal tokens are not a replacement");
        authenticator.replace(&tokens("new", "fedcba9876543210"));
        assert!(
            authenticator.admit(credentials(SECRET), Verb::Check).is_err()
                && authenticator.admit(credentials("fedcba9876543210"), Verb::Check).is_ok()
        );
        assert_eq!(authenticator.generation(), 1);
        let open = Authenticator::new(Tokens::default());
        open.replace(&tokens("new", SECRET));
        assert!(open.admit(Credentials::default(), Verb::Check).is_ok());
    }

    #[test]
    fn a_token_is_restricted_to_its_verbs() {
        let token = Token::new("app", SECRET, Scope::Read).unwrap();
        for verb in Verb::ALL {
            assert!(authorize(&token, *verb).is_ok());
            let is_default = verb.is_check_or_peek();
            let restricted = token.clone().for_verbs(Verbs::default());
            assert_eq!(authorize(&restricted, *verb).is_ok(), is_default, "{verb:?}");
            assert!(authorize(&token.clone().for_verbs([*verb].into_iter().collect()), *verb).is_ok());
        }
        let rejection = authorize(&token.for_verbs(Verbs::default()), Verb::Reset).unwrap_err();
        assert_eq!(
            rejection.to_string(),
            "the token \"app\" may not reset; the configuration allows it check, peek"
        );
    }
}
