//! Converts limits of Limitador to policies.

use std::collections::HashSet;
use std::fmt::Write;
use std::time::Duration;

use slidegate::{Algorithm, Policy, Quota, QuotaError};

use super::Limit;
use crate::Problem;
use crate::import::write::ConfigWriter;

const HEADER: [&str; 2] = [
    "Made by `slidegate import limitador`: one policy for each limit. A request names its policy.",
    "Comments describe the requests and the key of each policy. The caller chooses both.",
];

/// Returns the summary and the configuration file. Adds the problems of limits that cannot be converted to `left_out`.
pub(super) fn write(limits: &[Limit], algorithm: Algorithm, left_out: &mut Vec<Problem>) -> (String, String) {
    let mut writer = ConfigWriter::new(&HEADER);
    let (mut summary, mut names) = (String::new(), HashSet::new());
    for limit in limits {
        match policy(limit, algorithm, &mut names) {
            Ok(policy) => {
                let _ = writeln!(summary, "{}: {}", policy.name(), policy.quotas()[0]);
                for note in notes(limit) {
                    let _ = writeln!(summary, "  {note}");
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
    for Problem { field, message, .. } in left_out.iter() {
        writer.comment(&format!("left out: {field}: {message}"));
    }
    (summary, writer.finish(names.is_empty()))
}

/// Returns comments for the caller: the requests that the limit applies to, and the parts of its key.
fn notes(limit: &Limit) -> Vec<String> {
    let condition =
        |(descriptor, value): &(String, String)| format!("for requests whose {descriptor} is {value:?}");
    let mut notes: Vec<String> = limit.conditions.iter().map(condition).collect();
    notes.push(match limit.variables.as_slice() {
        [] => "the key is the same for all requests, such as \"all\"".to_owned(),
        variables => format!("the key consists of {}", variables.join(" and ")),
    });
    notes
}

fn policy(limit: &Limit, algorithm: Algorithm, names: &mut HashSet<String>) -> Result<Policy, QuotaError> {
    let quota = Quota::new(limit.max_value, Duration::from_secs(limit.seconds))?.with_algorithm(algorithm);
    let quota_name = limit.name.clone().unwrap_or_else(|| quota.label());
    let mut name = limit.namespace.clone();
    for (descriptor, value) in &limit.conditions {
        let _ = write!(name, ".{descriptor}_{value}");
    }
    for descriptor in &limit.variables {
        let _ = write!(name, ".{descriptor}");
    }
    // The label makes names of limits unique that differ in their numbers only. If it does not, the limit's own name does,
    // or else its index.
    let with_label = format!("{name}.{}", quota.label());
    let with_name = limit.name.as_ref().map(|own| format!("{with_label}.{own}"));
    let candidates = [Some(with_label.clone()), with_name].into_iter().flatten();
    let unused = candidates.into_iter().find(|name| !names.contains(name));
    let name = unused.unwrap_or_else(|| format!("{with_label}#{}", limit.index));
    names.insert(name.clone());
    Policy::with_names(&name, [(quota_name, quota)])
}
