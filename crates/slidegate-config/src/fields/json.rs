//! Conversion of YAML to JSON.

use std::collections::HashSet;

use serde_json::{Map, Number, Value as Json};

use crate::fields::diagnostics::Diagnostics;
use crate::fields::field::join;
use crate::fields::tree::{self, Entry, Node, Tags, Value};
use crate::problem::Problem;

/// Converts the text of a file with one document to JSON, or returns all problems.
pub fn yaml_to_json(text: &str) -> Result<Json, Vec<Problem>> {
    let root = tree::parse(text, Tags::Core).map_err(|problem| vec![problem])?;
    let mut diagnostics = Diagnostics::new(false);
    let value = root.map_or(Some(Json::Null), |root| json(&root, "", &mut diagnostics));
    value.ok_or_else(|| diagnostics.into_problems())
}

/// Converts a value, or reports its problems. Scalars have the types of YAML's core schema, and booleans also the
/// spellings of YAML 1.1, which envoyproxy/ratelimit reads.
pub(crate) fn json(node: &Node, path: &str, diagnostics: &mut Diagnostics) -> Option<Json> {
    match &node.value {
        _ if node.is_null() => Some(Json::Null),
        Value::Scalar { text, is_plain: true } => {
            let value = plain(text);
            if value.is_none() {
                diagnostics.report(node.line, path, format!("{text} is not a finite number"));
            }
            value
        }
        Value::Scalar { text, .. } => Some(Json::String(text.clone())),
        Value::List(nodes) => {
            let mut items = Vec::with_capacity(nodes.len());
            for (index, node) in nodes.iter().enumerate() {
                items.extend(json(node, &format!("{path}[{index}]"), diagnostics));
            }
            (items.len() == nodes.len()).then_some(Json::Array(items))
        }
        Value::Map(entries) => object(entries, path, diagnostics).map(Json::Object),
    }
}

/// Converts a mapping, or reports its problems.
pub(crate) fn object(
    entries: &[Entry],
    path: &str,
    diagnostics: &mut Diagnostics,
) -> Option<Map<String, Json>> {
    let mut seen = HashSet::new();
    let mut object = Map::new();
    for entry in entries {
        if !seen.insert(entry.name.as_str()) {
            let message = format!("{:?} appears twice in this mapping", entry.name);
            diagnostics.report(entry.line, path, message);
            continue;
        }
        let value = json(&entry.node, &join(path, &entry.name), diagnostics);
        object.extend(value.map(|value| (entry.name.clone(), value)));
    }
    (object.len() == entries.len()).then_some(object)
}

/// Converts a scalar without quotes. Returns `None` if it is a number that is not finite.
fn plain(text: &str) -> Option<Json> {
    if let Some(boolean) = boolean(text) {
        return Some(Json::Bool(boolean));
    }
    let whole = integer(text).and_then(Number::from_i128);
    match (whole, float(text)) {
        (Some(number), _) => Some(Json::Number(number)),
        (None, Some(float)) => Number::from_f64(float).map(Json::Number),
        (None, None) => Some(Json::String(text.to_owned())),
    }
}

/// Parses a boolean in any spelling of YAML 1.1, in upper or lower case.
pub(crate) fn boolean(text: &str) -> Option<bool> {
    let is_any = |words: [&str; 4]| words.iter().any(|word| word.eq_ignore_ascii_case(text));
    match () {
        () if is_any(["true", "yes", "on", "y"]) => Some(true),
        () if is_any(["false", "no", "off", "n"]) => Some(false),
        () => None,
    }
}

/// Parses a whole number with an optional sign: decimal, or with the prefix `0x`, `0o` or `0b`. An underscore may stand
/// between two digits. A decimal number has no leading zeros, which YAML 1.1 reads as octal.
pub(crate) fn integer(text: &str) -> Option<i128> {
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let (radix, digits) = match unsigned.get(..2) {
        Some("0x" | "0X") => (16, &unsigned[2..]),
        Some("0o" | "0O") => (8, &unsigned[2..]),
        Some("0b" | "0B") => (2, &unsigned[2..]),
        _ => (10, unsigned),
    };
    let is_octal = radix == 10 && digits.len() > 1 && digits.starts_with('0');
    // `from_str_radix` accepts a second sign.
    let is_grouped = digits
        .split('_')
        .all(|group| !group.is_empty() && group.bytes().all(|byte| byte.is_ascii_alphanumeric()));
    if is_octal || !is_grouped {
        return None;
    }
    let magnitude = i128::from_str_radix(&digits.replace('_', ""), radix).ok()?;
    Some(if text.starts_with('-') { -magnitude } else { magnitude })
}

fn float(text: &str) -> Option<f64> {
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    if unsigned.eq_ignore_ascii_case(".inf") || unsigned.eq_ignore_ascii_case(".nan") {
        return Some(f64::NAN);
    }
    // `parse` also accepts words such as `inf`.
    let is_number = unsigned.starts_with(|first: char| first.is_ascii_digit() || first == '.');
    text.parse().ok().filter(|_| is_number)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn converted(text: &str) -> Result<Json, Vec<String>> {
        let line =
            |problem: Problem| format!("{}: {}: {}", problem.line.unwrap(), problem.field, problem.message);
        yaml_to_json(text).map_err(|problems| problems.into_iter().map(line).collect())
    }

    #[test]
    fn scalars_have_the_types_of_the_core_schema() {
        for (text, expected) in [
            ("a: ", json!(null)),
            ("a: ~", json!(null)),
            ("a: null", json!(null)),
            ("a: 'null'", json!("null")),
            ("a: true", json!(true)),
            ("a: No", json!(false)),
            ("a: 'true'", json!("true")),
            ("a: 0", json!(0)),
            ("a: -0", json!(0)),
            ("a: +12", json!(12)),
            ("a: -12", json!(-12)),
            ("a: 1_000", json!(1000)),
            ("a: 1__0", json!("1__0")),
            ("a: 0x1F", json!(31)),
            ("a: 0o17", json!(15)),
            ("a: 0b101", json!(5)),
            ("a: 0x", json!("0x")),
            ("a: 017", json!(17.0)),
            ("a: 18446744073709551615", json!(u64::MAX)),
            ("a: -9223372036854775808", json!(i64::MIN)),
            ("a: 18446744073709551616", json!(18_446_744_073_709_551_616.0)),
            ("a: 1.5", json!(1.5)),
            ("a: .5", json!(0.5)),
            ("a: -1e3", json!(-1000.0)),
            ("a: inf", json!("inf")),
            ("a: --1", json!("--1")),
            ("a: 10.0.0.1", json!("10.0.0.1")),
            ("a: 2020-01-01", json!("2020-01-01")),
            ("a: '5'", json!("5")),
            ("a: !!str 5", json!("5")),
            ("a: ! 5", json!("5")),
            ("a: !!int '5'", json!(5)),
            ("a: !!null 5", json!(null)),
            ("a: [1, {b: c}, ~]", json!([1, {"b": "c"}, null])),
            ("a: {1: x, true: z}", json!({"1": "x", "true": "z"})),
        ] {
            assert_eq!(converted(text), Ok(json!({"a": expected})), "{text}");
        }
    }

    #[test]
    fn all_problems_are_reported_with_their_paths() {
        let problems = converted("a: .inf\nb: [1, -.NaN]\nc: {d: 1,\n  d: 2}\ne: 1e999\n").unwrap_err();
        assert_eq!(
            problems,
            [
                "1: a: .inf is not a finite number",
                "2: b[1]: -.NaN is not a finite number",
                "4: c: \"d\" appears twice in this mapping",
                "5: e: 1e999 is not a finite number",
            ]
        );
    }

    #[test]
    fn tags_outside_the_core_schema_are_rejected() {
        for (text, tag) in [("a: !!binary aGk=", "!!binary"), ("a: !foo 5", "!foo"), ("!x {a: 5}", "!x")] {
            let problem = tree::parse(text, Tags::Core).unwrap_err();
            let expected = format!(
                "the tag {tag} is not supported; only !!str and the other tags of YAML's core schema are"
            );
            assert_eq!(problem.message, expected, "{text}");
        }
    }
}
