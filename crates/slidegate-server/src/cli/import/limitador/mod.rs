//! Converts limits of Limitador to policies or to files of envoyproxy/ratelimit, as far as these can express them.

mod envoy;
mod policies;

use std::fmt::Write;
use std::path::Path;

use serde::Deserialize;
use serde_saphyr::Spanned;
use slidegate::{Algorithm, MAX_LIMIT};

use super::write::Imported;
use crate::cli::Failure;
use slidegate_config::BoundedInteger;
use slidegate_config::envoy::parse_yaml;
use slidegate_config::{Problem, Problems};

/// Format to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum TargetFormat {
    /// Configuration file, with one policy for each limit
    Policies,
    /// Files of envoyproxy/ratelimit, one for each namespace, for a proxy that keeps its configuration
    Envoy,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct LimitFields {
    namespace: Spanned<String>,
    max_value: Spanned<BoundedInteger<0, MAX_LIMIT>>,
    seconds: Spanned<BoundedInteger<1, { 366 * 24 * 60 * 60 }>>,
    conditions: Option<Vec<Spanned<String>>>,
    variables: Option<Vec<Spanned<String>>>,
    name: Option<String>,
    id: Option<String>,
    /// Algorithm, which some versions of Limitador have.
    policy: Option<String>,
}

/// Parsed limit.
struct Limit {
    /// Index in the file, from 0.
    index: usize,
    line: u64,
    namespace: String,
    max_value: u64,
    seconds: u64,
    /// Descriptors and their values.
    conditions: Vec<(String, String)>,
    /// Descriptors whose values are counted separately.
    variables: Vec<String>,
    name: Option<String>,
}

impl Limit {
    fn problem(&self, field: &str, message: impl Into<String>) -> Problem {
        Problem::at(self.line, format!("[{}]{field}", self.index), message)
    }
}

/// Limits in the target format, and the problems of those that are left out.
struct Converted {
    imported: Imported,
    left_out: Vec<Problem>,
}

pub(super) fn import(
    path: &Path,
    to: TargetFormat,
    algorithm: Option<Algorithm>,
) -> Result<Imported, Failure> {
    if to == TargetFormat::Envoy && algorithm.is_some() {
        return Err(Failure::new(
            "--algorithm needs --to policies, because files of envoyproxy/ratelimit have no algorithm; choose it with \
             `slidegate serve --envoy-algorithm`"
                .to_owned(),
        ));
    }
    let file = path.display().to_string();
    let failure = |problems| Failure::Files(vec![Problems::new(&file, problems)]);
    let text = std::fs::read_to_string(path)
        .map_err(|error| failure(vec![Problem::without_line("file", format!("cannot be read: {error}"))]))?;
    let fields: Vec<LimitFields> = parse_yaml(&text).map_err(|problem| failure(vec![problem]))?;
    let (mut limits, mut invalid) = (Vec::new(), Vec::new());
    for (index, limit) in fields.iter().enumerate() {
        match parse(index, limit) {
            Ok(limit) => limits.push(limit),
            Err(problems) => invalid.extend(problems),
        }
    }
    let convert = |left_out: Vec<Problem>| match to {
        TargetFormat::Policies => {
            policies::write(&limits, algorithm.unwrap_or(Algorithm::FixedWindow), left_out)
        }
        TargetFormat::Envoy => envoy::write(&limits, left_out),
    };
    let Converted { mut imported, left_out } = convert(invalid);
    if left_out.is_empty() {
        return Ok(imported);
    }
    if imported.summary.is_empty() {
        return Err(failure(left_out));
    }
    let _ = writeln!(imported.summary, "left out:\n{}", Problems::new(&file, left_out));
    Ok(imported)
}

/// Parses a limit, or lists the parts that cannot be converted.
fn parse(index: usize, limit: &LimitFields) -> Result<Limit, Vec<Problem>> {
    let line = limit.namespace.defined.line();
    let mut problems = Vec::new();
    let mut problem = |field: &str, line, message: String| {
        problems.push(Problem::at(line, format!("[{index}].{field}"), message));
    };
    for (field, line, checked) in [
        ("max_value", limit.max_value.defined.line(), limit.max_value.value.checked()),
        ("seconds", limit.seconds.defined.line(), limit.seconds.value.checked()),
    ] {
        if let Err(message) = checked {
            problem(field, line, message);
        }
    }
    if let Some(policy) = &limit.policy {
        problem("policy", line, format!("{policy:?} cannot be converted; choose one with --algorithm"));
    }
    let mut conditions: Vec<(String, String)> = Vec::new();
    for (position, condition) in limit.conditions.iter().flatten().enumerate() {
        match parse_equality(&condition.value) {
            Some((descriptor, value)) => conditions.push((descriptor.to_owned(), value.to_owned())),
            None => problem(
                &format!("conditions[{position}]"),
                condition.defined.line(),
                format!("{:?} cannot be converted; only descriptor == \"value\" can", condition.value),
            ),
        }
    }
    let mut variables = Vec::new();
    for (position, variable) in limit.variables.iter().flatten().enumerate() {
        let descriptor = descriptor_of(&variable.value);
        if is_plain(descriptor) {
            variables.push(descriptor.to_owned());
        } else {
            let message =
                format!("{:?} cannot be converted; only the name of a descriptor can", variable.value);
            problem(&format!("variables[{position}]"), variable.defined.line(), message);
        }
    }
    if !problems.is_empty() {
        return Err(problems);
    }
    Ok(Limit {
        index,
        line,
        namespace: limit.namespace.value.clone(),
        max_value: limit.max_value.value.0,
        seconds: limit.seconds.value.0,
        conditions,
        variables,
        name: limit.name.clone().or_else(|| limit.id.clone()),
    })
}

/// Parses `descriptor == "value"`, with a descriptor in any form of [`descriptor_of`].
fn parse_equality(condition: &str) -> Option<(&str, &str)> {
    let (descriptor, value) = condition.split_once("==")?;
    let value = value.trim();
    let quote = value.chars().next().filter(|quote| matches!(quote, '"' | '\''))?;
    let value = value.strip_prefix(quote)?.strip_suffix(quote)?;
    let descriptor = descriptor_of(descriptor.trim());
    (is_plain(descriptor) && !value.contains(['"', '\''])).then_some((descriptor, value))
}

/// Returns whether a text is the name of a descriptor, and not another expression.
fn is_plain(descriptor: &str) -> bool {
    let is_name = |character: char| character.is_alphanumeric() || "_-.:/".contains(character);
    !descriptor.is_empty() && descriptor.chars().all(is_name)
}

/// Returns the name `x` from `descriptors[0]['x']`, `descriptors[0].x` or `x`, the forms of Limitador's versions.
fn descriptor_of(expression: &str) -> &str {
    let Some(rest) = expression.strip_prefix("descriptors[0]") else { return expression };
    let bracketed = rest.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    bracketed.map_or_else(|| rest.trim_start_matches('.'), |quoted| quoted.trim_matches(['"', '\'']))
}
