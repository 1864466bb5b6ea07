//! Limits of Limitador as policies: those that a policy can express.

use std::collections::HashSet;
use std::fmt::Write;
use std::path::Path;
use std::time::Duration;

use serde::Deserialize;
use serde_saphyr::Spanned;
use slidegate::{Algorithm, MAX_LIMIT, Policy, Quota, QuotaError};

use super::write::{Imported, Writer};
use crate::command::Failure;
use crate::config::{Problem, Problems};
use crate::envoy::parse_yaml;
use crate::whole::Whole;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct LimitFields {
    namespace: Spanned<String>,
    max_value: Spanned<Whole<1, MAX_LIMIT>>,
    seconds: Spanned<Whole<1, { 366 * 24 * 60 * 60 }>>,
    conditions: Option<Vec<Spanned<String>>>,
    variables: Option<Vec<Spanned<String>>>,
    name: Option<String>,
    id: Option<String>,
    /// Token bucket or fixed window in some versions.
    policy: Option<String>,
}

const BEGINNING: [&str; 2] = [
    "Made by `slidegate import limitador`: one policy for each limit, to be asked for by name.",
    "A comment says which requests it is for and of what its key is made: that is for the caller to do.",
];

pub(super) fn import(path: &Path, algorithm: Algorithm) -> Result<Imported, Failure> {
    let file = path.display().to_string();
    let refuse = |problems| Failure::Files(vec![Problems::new(&file, problems)]);
    let text = std::fs::read_to_string(path)
        .map_err(|error| refuse(vec![Problem::without_line("file", format!("cannot be read: {error}"))]))?;
    let limits: Vec<LimitFields> = parse_yaml(&text).map_err(|problem| refuse(vec![problem]))?;
    let mut writer = Writer::new(&BEGINNING);
    let (mut told, mut problems, mut names) = (String::new(), Vec::new(), HashSet::new());
    for (index, limit) in limits.iter().enumerate() {
        match policy(index, limit, algorithm, &mut names) {
            Ok((policy, notes)) => {
                let _ = writeln!(told, "{}: {}", policy.name(), policy.quotas()[0]);
                for note in &notes {
                    let _ = writeln!(told, "  {note}");
                    writer.comment(note);
                }
                writer.policy(policy.name(), &[(policy.quota_name(0), policy.quotas()[0])], false);
            }
            Err(found) => problems.extend(found),
        }
    }
    if !problems.is_empty() {
        return Err(refuse(problems));
    }
    Ok(Imported { told, file: writer.finish(limits.is_empty()) })
}

/// The policy, and what the caller has to know of it; or what cannot be carried over.
fn policy(
    index: usize,
    limit: &LimitFields,
    algorithm: Algorithm,
    names: &mut HashSet<String>,
) -> Result<(Policy, Vec<String>), Vec<Problem>> {
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
    let mut notes = Vec::new();
    let mut name = limit.namespace.value.clone();
    for (place, condition) in limit.conditions.iter().flatten().enumerate() {
        match equals(&condition.value) {
            Some((descriptor, value)) => {
                let _ = write!(name, ".{descriptor}_{value}");
                notes.push(format!("for requests whose {descriptor} is {value:?}"));
            }
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
            let _ = write!(name, ".{descriptor}");
            variables.push(descriptor);
        } else {
            let message =
                format!("{:?} cannot be carried over; only the name of a descriptor can", variable.value);
            refuse(&format!("variables[{place}]"), variable.defined.line(), message);
        }
    }
    match variables.as_slice() {
        [] => notes.push("the key is one for all, such as \"all\"".to_owned()),
        variables => notes.push(format!("the key is made of {}", variables.join(" and "))),
    }
    if !problems.is_empty() {
        return Err(problems);
    }
    let refused =
        |error: QuotaError| vec![Problem::at(line, format!("[{index}].{}", error.field()), error.message())];
    build(&name, index, limit, algorithm, names).map(|policy| (policy, notes)).map_err(refused)
}

fn build(
    name: &str,
    index: usize,
    limit: &LimitFields,
    algorithm: Algorithm,
    names: &mut HashSet<String>,
) -> Result<Policy, QuotaError> {
    let window = Duration::from_secs(limit.seconds.value.0);
    let quota = Quota::new(limit.max_value.value.0, window)?.with_algorithm(algorithm);
    let shown = limit.name.clone().or_else(|| limit.id.clone()).unwrap_or_else(|| quota.label());
    // Limits that differ in numbers alone are several in one namespace, hence these in the name; if they do not even
    // differ in these, what they are called, or else their place.
    let of_numbers = format!("{name}.{}", quota.label());
    let called = limit.name.as_ref().or(limit.id.as_ref()).map(|called| format!("{of_numbers}.{called}"));
    let candidates = [Some(of_numbers.clone()), called].into_iter().flatten();
    let unused = candidates.into_iter().find(|name| !names.contains(name));
    let name = unused.unwrap_or_else(|| format!("{of_numbers}#{index}"));
    names.insert(name.clone());
    Policy::with_names(&name, [(shown, quota)])
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
