//! Limits of Limitador, as policies or as files of envoyproxy/ratelimit: those that these can express.

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

/// The format to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum To {
    /// A configuration file, with one policy for each limit
    Policies,
    /// Files of envoyproxy/ratelimit, one for each namespace: a proxy that asks Limitador keeps its configuration
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
    /// Token bucket or fixed window in some versions.
    policy: Option<String>,
}

/// A limit that was understood.
struct Limit {
    /// Place in the file, from 0.
    index: usize,
    line: u64,
    namespace: String,
    max_value: u64,
    seconds: u64,
    /// Descriptors and their values.
    conditions: Vec<(String, String)>,
    /// Descriptors whose values are counted apart.
    variables: Vec<String>,
    name: Option<String>,
}

impl Limit {
    fn problem(&self, field: &str, message: impl Into<String>) -> Problem {
        Problem::at(self.line, format!("[{}]{field}", self.index), message)
    }
}

/// The limits in the other format, and the problems of those that are left out.
struct Carried {
    imported: Imported,
    left_out: Vec<Problem>,
}

pub(super) fn import(path: &Path, to: To, algorithm: Option<Algorithm>) -> Result<Imported, Failure> {
    if to == To::Envoy && algorithm.is_some() {
        return Err(Failure::new(
            "--algorithm goes with --to policies; files of envoyproxy/ratelimit name none: \
             choose it with `slidegate serve --envoy-algorithm`"
                .to_owned(),
        ));
    }
    let file = path.display().to_string();
    let refuse = |problems| Failure::Files(vec![Problems::new(&file, problems)]);
    let text = std::fs::read_to_string(path)
        .map_err(|error| refuse(vec![Problem::without_line("file", format!("cannot be read: {error}"))]))?;
    let fields: Vec<LimitFields> = parse_yaml(&text).map_err(|problem| refuse(vec![problem]))?;
    let (mut limits, mut not_understood) = (Vec::new(), Vec::new());
    for (index, limit) in fields.iter().enumerate() {
        match read(index, limit) {
            Ok(limit) => limits.push(limit),
            Err(problems) => not_understood.extend(problems),
        }
    }
    let carry_over = |left_out: Vec<Problem>| match to {
        To::Policies => policies::write(&limits, algorithm.unwrap_or(Algorithm::FixedWindow), left_out),
        To::Envoy => envoy::write(&limits, left_out),
    };
    let Carried { mut imported, left_out } = carry_over(not_understood);
    if left_out.is_empty() {
        return Ok(imported);
    }
    if imported.told.is_empty() {
        return Err(refuse(left_out));
    }
    let _ = writeln!(imported.told, "left out:\n{}", Problems::new(&file, left_out));
    Ok(imported)
}

/// Reads a limit, or lists the parts that cannot be understood.
fn read(index: usize, limit: &LimitFields) -> Result<Limit, Vec<Problem>> {
    let line = limit.namespace.defined.line();
    let mut problems = Vec::new();
    let mut refuse = |field: &str, line, message: String| {
        problems.push(Problem::at(line, format!("[{index}].{field}"), message));
    };
    for (field, at, checked) in [
        ("max_value", limit.max_value.defined.line(), limit.max_value.value.checked()),
        ("seconds", limit.seconds.defined.line(), limit.seconds.value.checked()),
    ] {
        if let Err(message) = checked {
            refuse(field, at, message);
        }
    }
    if let Some(policy) = &limit.policy {
        refuse("policy", line, format!("{policy:?} cannot be carried over; choose one with --algorithm"));
    }
    let mut conditions: Vec<(String, String)> = Vec::new();
    for (place, condition) in limit.conditions.iter().flatten().enumerate() {
        match equals(&condition.value) {
            Some((descriptor, value)) => conditions.push((descriptor.to_owned(), value.to_owned())),
            None => refuse(
                &format!("conditions[{place}]"),
                condition.defined.line(),
                format!("{:?} cannot be carried over; only descriptor == \"value\" can", condition.value),
            ),
        }
    }
    let mut variables = Vec::new();
    for (place, variable) in limit.variables.iter().flatten().enumerate() {
        let descriptor = descriptor_of(&variable.value);
        if is_plain(descriptor) {
            variables.push(descriptor.to_owned());
        } else {
            let message =
                format!("{:?} cannot be carried over; only the name of a descriptor can", variable.value);
            refuse(&format!("variables[{place}]"), variable.defined.line(), message);
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

/// `descriptor == "value"`, in any of the ways in which versions of Limitador write a descriptor.
fn equals(condition: &str) -> Option<(&str, &str)> {
    let (descriptor, value) = condition.split_once("==")?;
    let value = value.trim();
    let quote = value.chars().next().filter(|quote| matches!(quote, '"' | '\''))?;
    let value = value.strip_prefix(quote)?.strip_suffix(quote)?;
    let descriptor = descriptor_of(descriptor.trim());
    (is_plain(descriptor) && !value.contains(['"', '\''])).then_some((descriptor, value))
}

/// Whether it is the name of a descriptor, and no expression.
fn is_plain(descriptor: &str) -> bool {
    let is_name = |character: char| character.is_alphanumeric() || "_-.:/".contains(character);
    !descriptor.is_empty() && descriptor.chars().all(is_name)
}

/// `descriptors[0]['x']`, `descriptors[0].x` and `x` are all `x`.
fn descriptor_of(expression: &str) -> &str {
    let Some(rest) = expression.strip_prefix("descriptors[0]") else { return expression };
    let bracketed = rest.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    bracketed.map_or_else(|| rest.trim_start_matches('.'), |quoted| quoted.trim_matches(['"', '\'']))
}
