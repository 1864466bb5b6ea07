//! YAML of foreign formats, deserialized into structs.

use std::fmt::Write;

use serde::de::DeserializeOwned;
use serde_path_to_error::{Path, Segment};
use serde_saphyr::{DefaultMessageFormatter, Error, MessageFormatter};

use crate::Problem;

/// Deserializes a file, or returns its first problem.
pub fn parse_yaml<T: DeserializeOwned>(text: &str) -> Result<T, Problem> {
    let mut field = None;
    let parsed = serde_saphyr::with_deserializer_from_str(text, |yaml| {
        serde_path_to_error::deserialize(yaml).map_err(|error| {
            field = field_path(error.path());
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
        // The text of the library names an option of its API, which the author of the file cannot set.
        Error::DuplicateMappingKey { key: Some(key), .. } => format!("{key:?} appears twice in this mapping"),
        Error::MultipleDocuments { .. } => "a second document begins; a file has one document".to_owned(),
        Error::Unexpected { expected: "mapping start", .. } => "expected a mapping".to_owned(),
        Error::Unexpected { expected: "sequence start", .. } => "expected a list".to_owned(),
        Error::NullIntoString { .. } => "expected a text, not nothing".to_owned(),
        other => DefaultMessageFormatter.format_message(other).into_owned(),
    }
}

/// Formats a path, without the fields that `Spanned` adds.
fn field_path(path: &Path) -> Option<String> {
    let mut field = String::new();
    for segment in path {
        match segment {
            Segment::Seq { index } => {
                let _ = write!(field, "[{index}]");
            }
            Segment::Map { key } if key == "value" => {}
            Segment::Map { key } => {
                if !field.is_empty() {
                    field.push('.');
                }
                field.push_str(key);
            }
            Segment::Enum { .. } | Segment::Unknown => {}
        }
    }
    (!field.is_empty()).then_some(field)
}
