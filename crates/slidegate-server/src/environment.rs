//! Environment variables. An empty variable counts as unset, because scripts pass unset values on as empty ones.

use std::ffi::{OsStr, OsString};

/// Returns the value of a variable, or `None` if it is unset or empty.
pub(crate) fn variable(name: impl AsRef<OsStr>) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}

/// Returns the value of a variable as text, or `None` if it is unset, empty or not UTF-8.
pub(crate) fn text(name: &str) -> Option<String> {
    variable(name)?.into_string().ok()
}

/// Returns whether a variable is set, but empty.
pub(crate) fn is_empty(name: impl AsRef<OsStr>) -> bool {
    std::env::var_os(name).is_some_and(|value| value.is_empty())
}
