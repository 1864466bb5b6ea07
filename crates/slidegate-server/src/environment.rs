//! What the environment says.

use std::ffi::{OsStr, OsString};

/// What a variable says. One that is empty says nothing, as where a script hands on what is not set.
pub(crate) fn said(name: impl AsRef<OsStr>) -> Option<OsString> {
    std::env::var_os(name).filter(|said| !said.is_empty())
}

/// The same as text; what is none says nothing either.
pub(crate) fn text(name: &str) -> Option<String> {
    said(name)?.into_string().ok()
}

/// Whether it is there and empty.
pub(crate) fn is_empty(name: impl AsRef<OsStr>) -> bool {
    std::env::var_os(name).is_some_and(|said| said.is_empty())
}
