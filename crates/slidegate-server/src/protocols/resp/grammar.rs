//! Parts of commands: names, policies and errors.

use slidegate_engine::{Rejection, RejectionKind};

use super::super::rates::{Dialect, Rate};

/// Length of the longest name that is compared.
const MAX_KEYWORD_BYTES: usize = 24;

/// Name of a command or an option in upper case, for comparisons that ignore case.
pub(super) struct Keyword {
    bytes: [u8; MAX_KEYWORD_BYTES],
    length: usize,
}

impl Keyword {
    /// Converts a word to upper case. The result is empty if the word is longer than every name.
    #[inline]
    pub(super) fn of(word: &[u8]) -> Self {
        let mut bytes = [0; MAX_KEYWORD_BYTES];
        let length = if word.len() <= MAX_KEYWORD_BYTES { word.len() } else { 0 };
        bytes[..length].copy_from_slice(&word[..length]);
        // A fixed length is faster than a variable one.
        bytes.make_ascii_uppercase();
        Self { bytes, length }
    }

    #[inline]
    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

/// Policy of a command.
pub(super) enum PolicySelector<'a> {
    /// A rate in the command.
    Rate(Rate),
    /// A policy of the configuration, in the given tier.
    Configured { name: &'a [u8], tier: Option<&'a [u8]> },
    /// Quotas in the command.
    Quotas(Vec<&'a [u8]>),
}

/// Reason for which a command is not executed.
pub(super) enum CommandError {
    /// An error of `CL.THROTTLE`, with the text of redis-cell.
    RedisCell(String),
    /// A wrong number of arguments for the named command.
    Arity(&'static str),
    /// Any other reason.
    Rejected(Rejection),
}

impl CommandError {
    /// Returns the error for a rate that is out of range, in the style of `dialect`.
    pub(super) fn invalid_rate(dialect: Dialect, message: String) -> Self {
        match dialect {
            Dialect::RedisCell => Self::RedisCell(message),
            Dialect::Throttlecrab => Self::Rejected(Rejection::new(RejectionKind::OutOfRange, message)),
        }
    }
}

impl From<Rejection> for CommandError {
    fn from(rejection: Rejection) -> Self {
        Self::Rejected(rejection)
    }
}
