//! Who may ask: bearer tokens, kept as hashes.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::ArcSwap;
use axum::http::header::AUTHORIZATION;
use axum::http::{HeaderMap, HeaderValue};
use slidegate::Verb;

use crate::request::{Refusal, RefusalKind};

/// How long a token may be. A short one can be tried out; a long one does not fit a request's head.
pub(crate) const TOKEN_BYTES: std::ops::RangeInclusive<usize> = 16..=1024;

/// For proxies, which pass on the `Authorization` of their clients.
const TOKEN_HEADER: &str = "x-slidegate-token";

/// What a token allows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scope {
    /// To look.
    #[default]
    Read,
    /// To look and to change.
    Write,
}

/// Verbs that a token of the data plane may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verbs(u8);

impl Verbs {
    /// Each verb and its name.
    pub(crate) const NAMES: &'static [(&'static str, Verb)] = &[
        ("check", Verb::Check),
        ("peek", Verb::Peek),
        ("charge", Verb::Charge),
        ("refund", Verb::Refund),
        ("reset", Verb::Reset),
        ("block", Verb::Block),
    ];
    /// All of them.
    pub const ALL: Self = Self(u8::MAX);

    /// Whether `verb` is among them.
    pub fn has(self, verb: Verb) -> bool {
        self.0 & Self::of(verb).0 != 0
    }

    fn of(verb: Verb) -> Self {
        let place = Self::NAMES.iter().position(|(_, other)| *other == verb);
        Self(place.map_or(0, |place| 1 << place))
    }
}

/// What an application needs that asks for decisions: to check and to peek.
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

/// `check, peek`.
impl fmt::Display for Verbs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = Self::NAMES.iter().filter(|(_, verb)| self.has(*verb)).map(|(name, _)| *name);
        f.write_str(&names.collect::<Vec<_>>().join(", "))
    }
}

/// A token's owner. The token itself is known by its hash alone.
#[derive(Clone, PartialEq, Eq)]
pub struct Token {
    name: String,
    hash: blake3::Hash,
    scope: Scope,
    verbs: Verbs,
}

impl Token {
    /// A token that is called `name`, or what is wrong with it. The secret is not repeated.
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

    /// The same token for these verbs alone.
    #[must_use]
    pub fn for_verbs(self, verbs: Verbs) -> Self {
        Self { verbs, ..self }
    }

    /// Refuses a verb that the token is not for.
    pub(crate) fn admit(&self, verb: Verb) -> Result<(), Refusal> {
        if self.verbs.has(verb) {
            return Ok(());
        }
        let detail = format!(
            "the token {:?} is not for {}; its verbs are {}, as the configuration says",
            self.name,
            Verbs(Verbs::of(verb).0),
            self.verbs
        );
        Err(Refusal::new(RefusalKind::Forbidden, detail))
    }

    /// Who it is, for logs.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What it allows.
    pub fn scope(&self) -> Scope {
        self.scope
    }

    /// Whether both have the same secret.
    pub(crate) fn is_same_secret(&self, other: &Self) -> bool {
        self.hash == other.hash
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Token").field("name", &self.name).field("scope", &self.scope).finish_non_exhaustive()
    }
}

/// Where a request may bear one. Of several headers with one name, the first counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Shown<'a> {
    authorization: Option<&'a [u8]>,
    token: Option<&'a [u8]>,
}

impl<'a> Shown<'a> {
    /// As `Authorization`.
    pub(crate) fn add_authorization(&mut self, value: &'a [u8]) {
        self.authorization.get_or_insert(value);
    }

    /// As `X-Slidegate-Token`.
    pub(crate) fn add_token(&mut self, value: &'a [u8]) {
        self.token.get_or_insert(value);
    }
}

impl<'a> From<&'a HeaderMap> for Shown<'a> {
    fn from(headers: &'a HeaderMap) -> Self {
        let authorization = headers.get(AUTHORIZATION).map(HeaderValue::as_bytes);
        Self { authorization, token: headers.get(TOKEN_HEADER).map(HeaderValue::as_bytes) }
    }
}

/// All tokens that open a door.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tokens(Vec<Token>);

impl Tokens {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Each of them.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Token> {
        self.0.iter()
    }

    /// Lets in whoever has a token, in `Authorization` or, where that is somebody else's, in `X-Slidegate-Token`.
    fn admit<'a>(&self, shown: impl Into<Shown<'a>>, verb: Verb) -> Result<(), Refusal> {
        let Shown { authorization, token } = shown.into();
        let by_itself = || token.and_then(|secret| self.who_has(secret));
        if let Some(token) = authorization.and_then(|bearer| self.who_bears(bearer)).or_else(by_itself) {
            return token.admit(verb);
        }
        let what = if authorization.is_some() || token.is_some() {
            "what was sent is none"
        } else {
            "none was sent"
        };
        let detail = format!(
            "a token is needed, and {what}; send Authorization: Bearer TOKEN, or X-Slidegate-Token: TOKEN where \
             Authorization is somebody else's"
        );
        Err(Refusal::new(RefusalKind::Unauthorized, detail))
    }

    /// Whose token the `Authorization` header bears.
    pub fn who(&self, authorization: Option<&HeaderValue>) -> Option<&Token> {
        self.who_bears(authorization?.as_bytes())
    }

    fn who_bears(&self, authorization: &[u8]) -> Option<&Token> {
        let (scheme, secret) = authorization.split_at_checked("Bearer ".len())?;
        if !scheme.eq_ignore_ascii_case(b"Bearer ") {
            return None;
        }
        self.who_has(secret.trim_ascii())
    }

    /// Whose token this is. It takes as long whoever it is: hashes are compared in constant time, and all of them.
    pub fn who_has(&self, secret: &[u8]) -> Option<&Token> {
        // So that nobody makes it hash what cannot be a token.
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

/// Who may come in now: tokens that are replaced while it runs. Whether there are any is settled once.
#[derive(Debug)]
pub struct Admission {
    is_open: bool,
    tokens: ArcSwap<Tokens>,
    /// How often they were replaced.
    turns: AtomicU64,
}

impl Admission {
    /// By these.
    pub fn new(tokens: Tokens) -> Self {
        Self { is_open: tokens.is_empty(), tokens: ArcSwap::from_pointee(tokens), turns: AtomicU64::new(0) }
    }

    /// Whether anyone may come in.
    pub fn is_open(&self) -> bool {
        self.is_open
    }

    /// Those that are valid now.
    pub fn tokens(&self) -> Arc<Tokens> {
        self.tokens.load_full()
    }

    /// From now on by these. A door that is open stays open and one that is closed stays closed, whatever a file says that
    /// may not be whole.
    pub(crate) fn replace(&self, tokens: &Tokens) {
        if self.is_open || tokens.is_empty() || **self.tokens.load() == *tokens {
            return;
        }
        self.tokens.store(Arc::new(tokens.clone()));
        self.turns.fetch_add(1, Ordering::Release);
    }

    /// Another number each time that tokens were replaced, for those who were let in before.
    pub(crate) fn turns(&self) -> u64 {
        self.turns.load(Ordering::Acquire)
    }

    /// Admits a request that shows a token which is for the verb.
    #[inline]
    pub(crate) fn admit<'a>(&self, shown: impl Into<Shown<'a>>, verb: Verb) -> Result<(), Refusal> {
        if self.is_open {
            return Ok(());
        }
        self.tokens.load().admit(shown, verb)
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
    fn a_token_opens_only_as_it_is() {
        let tokens: Tokens = [
            Token::new("app", SECRET, Scope::Read).unwrap(),
            Token::new("ops", "fedcba9876543210", Scope::Write).unwrap(),
        ]
        .into_iter()
        .collect();
        let who = |header: &str| {
            let header = HeaderValue::from_str(header).unwrap();
            tokens.who(Some(&header)).map(|token| (token.name(), token.scope()))
        };
        assert_eq!(who("Bearer 0123456789abcdef"), Some(("app", Scope::Read)));
        assert_eq!(who("bearer  fedcba9876543210"), Some(("ops", Scope::Write)));
        for header in ["", "Bearer", "Bearer ", "Basic 0123456789abcdef", SECRET, "Bearer 0123456789abcde"] {
            assert_eq!(who(header), None, "{header}");
        }
        assert_eq!(tokens.who(None), None);
        assert_eq!(Tokens::default().who_has(SECRET.as_bytes()), None);
    }

    #[test]
    fn a_door_is_never_opened_nor_closed_by_what_a_file_leaves_out() {
        let of = |name: &str, secret: &str| -> Tokens {
            [Token::new(name, secret, Scope::Read).unwrap()].into_iter().collect()
        };
        let shown = |secret: &'static str| Shown { token: Some(secret.as_bytes()), ..Shown::default() };
        let admission = Admission::new(of("old", SECRET));
        admission.replace(&Tokens::default());
        assert!(
            admission.admit(shown(SECRET), Verb::Check).is_ok()
                && admission.admit(Shown::default(), Verb::Check).is_err()
        );
        admission.replace(&of("old", SECRET));
        assert_eq!(admission.turns(), 0, "nobody has to be looked at again");
        admission.replace(&of("new", "fedcba9876543210"));
        assert!(
            admission.admit(shown(SECRET), Verb::Check).is_err()
                && admission.admit(shown("fedcba9876543210"), Verb::Check).is_ok()
        );
        assert_eq!(admission.turns(), 1);
        let open = Admission::new(Tokens::default());
        open.replace(&of("new", SECRET));
        assert!(open.admit(Shown::default(), Verb::Check).is_ok());
    }

    #[test]
    fn a_token_is_neither_weak_nor_shown() {
        for secret in ["", "short", "with a space in it", "größergrößergrößer", &"a".repeat(1025)] {
            let refused = Token::new("app", secret, Scope::Read).unwrap_err();
            assert!(secret.is_empty() || !refused.contains(secret), "{refused}");
        }
        let shown = format!("{:?}", Token::new("app", SECRET, Scope::Read).unwrap());
        let hash = blake3::hash(SECRET.as_bytes()).to_hex();
        assert!(shown.contains("app") && !shown.contains(SECRET) && !shown.contains(&hash[..8]), "{shown}");
    }

    #[test]
    fn a_token_is_for_its_verbs_alone() {
        let token = Token::new("app", SECRET, Scope::Read).unwrap();
        for (_, verb) in Verbs::NAMES {
            assert!(token.admit(*verb).is_ok());
            let is_usual = matches!(verb, Verb::Check | Verb::Peek);
            let usual = token.clone().for_verbs(Verbs::default());
            assert_eq!(usual.admit(*verb).is_ok(), is_usual, "{verb:?}");
            assert!(token.clone().for_verbs([*verb].into_iter().collect()).admit(*verb).is_ok());
        }
        let refused = token.for_verbs(Verbs::default()).admit(Verb::Reset).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "the token \"app\" is not for reset; its verbs are check, peek, as the configuration says"
        );
    }
}
