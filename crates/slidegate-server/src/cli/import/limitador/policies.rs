//! Limits of Limitador as policies, which callers ask for by name.

use std::collections::HashSet;
use std::fmt::Write;
use std::time::Duration;

use slidegate::{Algorithm, Policy, Quota, QuotaError};

use super::{Carried, Limit};
use crate::cli::import::write::{Imported, Writer};
use slidegate_config::Problem;

const BEGINNING: [&str; 2] = [
    "Made by `slidegate import limitador`: one policy for each limit, to be asked for by name.",
    "A comment says which requests it is for and of what its key is made: that is for the caller to do.",
];

pub(super) fn write(limits: &[Limit], algorithm: Algorithm, mut left_out: Vec<Problem>) -> Carried {
    let mut writer = Writer::new(&BEGINNING);
    let (mut told, mut names) = (String::new(), HashSet::new());
    for limit in limits {
        match policy(limit, algorithm, &mut names) {
            Ok(policy) => {
                let _ = writeln!(told, "{}: {}", policy.name(), policy.quotas()[0]);
                for note in notes(limit) {
                    let _ = writeln!(told, "  {note}");
                    writer.comment(&note);
                }
                writer.policy(policy.name(), &[(policy.quota_name(0), policy.quotas()[0])], false);
            }
            Err(error) => {
                let field = if error.field() == "window" { ".seconds" } else { ".max_value" };
                left_out.push(limit.problem(field, error.message()));
            }
        }
    }
    for Problem { field, message, .. } in &left_out {
        writer.comment(&format!("left out: {field}: {message}"));
    }
    Carried { imported: Imported::one(told, writer.finish(names.is_empty())), left_out }
}

/// Comments for the caller: the requests that the limit is for, and the parts of its key.
fn notes(limit: &Limit) -> Vec<String> {
    let condition =
        |(descriptor, value): &(String, String)| format!("for requests whose {descriptor} is {value:?}");
    let mut notes: Vec<String> = limit.conditions.iter().map(condition).collect();
    notes.push(match limit.variables.as_slice() {
        [] => "the key is one for all, such as \"all\"".to_owned(),
        variables => format!("the key is made of {}", variables.join(" and ")),
    });
    notes
}

fn policy(limit: &Limit, algorithm: Algorithm, names: &mut HashSet<String>) -> Result<Policy, QuotaError> {
    let quota = Quota::new(limit.max_value, Duration::from_secs(limit.seconds))?.with_algorithm(algorithm);
    let shown = limit.name.clone().unwrap_or_else(|| quota.label());
    let mut name = limit.namespace.clone();
    for (descriptor, value) in &limit.conditions {
        let _ = write!(name, ".{descriptor}_{value}");
    }
    for descriptor in &limit.variables {
        let _ = write!(name, ".{descriptor}");
    }
    // Limits that differ in numbers alone are several in one namespace, hence these in the name; if they do not even
    // differ in these, what they are called, or else their place.
    let of_numbers = format!("{name}.{}", quota.label());
    let called = limit.name.as_ref().map(|called| format!("{of_numbers}.{called}"));
    let candidates = [Some(of_numbers.clone()), called].into_iter().flatten();
    let unused = candidates.into_iter().find(|name| !names.contains(name));
    let name = unused.unwrap_or_else(|| format!("{of_numbers}#{}", limit.index));
    names.insert(name.clone());
    Policy::with_names(&name, [(shown, quota)])
}
