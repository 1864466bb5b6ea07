//! JSON of requests and of stored changes.

use serde::Deserialize;
use serde_json::error::Category;
use slidegate::MAX_LIMIT;

use crate::request::{Rejection, RejectionKind};

/// Parses JSON. A rejection names the field.
pub fn parse_json<'a, T: Deserialize<'a>>(text: &'a str) -> Result<T, Rejection> {
    if let Ok(value) = serde_json::from_str(text) {
        return Ok(value);
    }
    // A second pass finds the path of the error, so that valid bodies need no tracking.
    let mut json = serde_json::Deserializer::from_str(text);
    let value = serde_path_to_error::deserialize(&mut json).map_err(|error| {
        let path = error.path().to_string();
        rejection(&path, error.inner())
    })?;
    json.end().map_err(|error| rejection(".", &error))?;
    Ok(value)
}

/// Returns the error text for a missing field.
fn missing(name: &str) -> String {
    let expected = match name {
        "limit" => "; it takes a whole number, such as 100",
        "window" => "; it takes a time such as 30s, 15m or 1d",
        _ => "",
    };
    format!("is missing{expected}")
}

/// Converts a JSON error at a path of the body into a rejection.
fn rejection(path: &str, error: &serde_json::Error) -> Rejection {
    let message = error.to_string();
    // serde_json reports a number that is too large for a float as a syntax error.
    let is_huge = message.starts_with("number out of range");
    if error.classify() != Category::Data && !is_huge {
        return Rejection::new(RejectionKind::Malformed, format!("the body is not valid JSON: {message}"));
    }
    let position = format!(" at line {} column {}", error.line(), error.column());
    let detail = if is_huge {
        format!("the number is too large; no field takes more than {MAX_LIMIT}")
    } else {
        message.strip_suffix(&position).unwrap_or(&message).to_owned()
    };
    let path = if path == "." { "" } else { path };
    let field_after =
        |problem: &str| detail.strip_prefix(problem)?.strip_prefix(" field `")?.strip_suffix('`');
    let (name, detail) = match (field_after("missing"), field_after("duplicate")) {
        (Some(name), _) => (name, missing(name)),
        (_, Some(name)) => (name, "it is given twice".to_owned()),
        (None, None) => ("", detail.clone()),
    };
    let parts = [path, name].map(|part| Some(part).filter(|part| !part.is_empty()));
    let field = parts.into_iter().flatten().collect::<Vec<_>>().join(".");
    let field = (!field.is_empty()).then_some(field);
    Rejection { field, ..Rejection::new(RejectionKind::OutOfRange, detail) }
}
