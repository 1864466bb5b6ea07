//! The shape of the file, with the line of every value that can be wrong.

use std::fmt::{self, Write};
use std::marker::PhantomData;

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_path_to_error::{Path, Segment};
use serde_saphyr::{DefaultMessageFormatter, Error, MessageFormatter, Spanned};

use super::admin::{AdminSpec, TokenFields};
use super::degrade::DegradeFields;
use super::door::{LimitsFields, LogFields, TlsFields};
use super::problem::Problem;
use super::rules::{KeySpec, OverrideFields};
use crate::quota_spec::QuotaSpec;
use crate::whole::Whole;

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct File {
    pub(super) http: Option<Spanned<String>>,
    pub(super) grpc: Option<Spanned<String>>,
    pub(super) resp: Option<Spanned<String>>,
    pub(super) admin: Option<Spanned<AdminSpec>>,
    pub(super) tokens: Option<Vec<Spanned<TokenFields>>>,
    pub(super) headers: Option<Spanned<String>>,
    pub(super) trusted_proxies: Option<Vec<Spanned<String>>>,
    pub(super) store: Option<Spanned<String>>,
    pub(super) limits: Option<LimitsFields>,
    pub(super) tls: Option<TlsFields>,
    pub(super) log: Option<LogFields>,
    pub(super) memory: Option<MemoryFields>,
    pub(super) degrade: Option<DegradeFields>,
    pub(super) policies: Option<Entries<PolicyFields>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct MemoryFields {
    pub(super) max_keys: Option<Spanned<Whole<1, { 1 << 31 }>>>,
    pub(super) max_bytes: Option<Spanned<Whole<1, { u64::MAX }>>>,
    pub(super) when_full: Option<Spanned<String>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PolicyFields {
    pub(super) quotas: Quotas,
    pub(super) tiers: Option<Entries<TierFields>>,
    pub(super) overrides: Option<Entries<Spanned<OverrideFields>>>,
    pub(super) headers: Option<Spanned<String>>,
    pub(super) key: Option<Spanned<KeySpec>>,
    pub(super) on_failure: Option<Spanned<String>>,
    pub(super) budget: Option<Spanned<String>>,
    pub(super) retry_jitter: Option<Spanned<String>>,
    pub(super) cache_denials: Option<bool>,
    pub(super) mode: Option<Spanned<String>>,
    pub(super) allow: Option<Vec<String>>,
    pub(super) deny: Option<Vec<String>>,
    pub(super) candidate: Option<Quotas>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TierFields {
    pub(super) quotas: Quotas,
}

pub(super) type Quotas = Spanned<Vec<Spanned<QuotaSpec>>>;

/// A mapping in the order of the file. The names are plain, because an error's path takes them from here.
#[derive(Debug)]
pub(super) struct Entries<T>(pub(super) Vec<(String, T)>);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Entries<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct EntriesVisitor<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for EntriesVisitor<T> {
            type Value = Entries<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a mapping of names")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Entries<T>, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    entries.push(entry);
                }
                Ok(Entries(entries))
            }
        }

        deserializer.deserialize_map(EntriesVisitor(PhantomData))
    }
}

/// The file's shape, or the first thing that keeps it from being read.
pub(super) fn parse(text: &str) -> Result<File, Problem> {
    let mut field = None;
    let parsed = serde_saphyr::with_deserializer_from_str(text, |yaml| {
        serde_path_to_error::deserialize(yaml).map_err(|error| {
            field = field_of(error.path());
            error.into_inner()
        })
    });
    parsed.map_err(|error| {
        let line = error.location().map_or(0, |location| location.line());
        Problem::at(line, field.unwrap_or_else(|| "yaml".to_owned()), message(error.without_snippet()))
    })
}

fn message(error: &Error) -> String {
    match error {
        // The library's own text tells its user to change an option that the file's author does not have.
        Error::DuplicateMappingKey { key: Some(key), .. } => format!("{key:?} stands here twice"),
        Error::MultipleDocuments { .. } => "a second document begins; a file has one".to_owned(),
        Error::Unexpected { expected: "mapping start", .. } => "expected a mapping".to_owned(),
        Error::Unexpected { expected: "sequence start", .. } => "expected a list".to_owned(),
        Error::NullIntoString { .. } => "expected a text, not nothing".to_owned(),
        other => DefaultMessageFormatter.format_message(other).into_owned(),
    }
}

/// The path without what `Spanned` puts into it: a `value` that is not a name below `policies`, `tiers` or `overrides`.
fn field_of(path: &Path) -> Option<String> {
    let mut field = String::new();
    let mut before = "";
    for segment in path {
        match segment {
            Segment::Seq { index } => {
                let _ = write!(field, "[{index}]");
            }
            Segment::Map { key }
                if key == "value" && !matches!(before, "policies" | "tiers" | "overrides") =>
            {
                continue;
            }
            Segment::Map { key } => {
                if !field.is_empty() {
                    field.push('.');
                }
                field.push_str(key);
            }
            Segment::Enum { .. } | Segment::Unknown => {}
        }
        before = if let Segment::Map { key } = segment { key } else { "" };
    }
    (!field.is_empty()).then_some(field)
}
