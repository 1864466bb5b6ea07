//! Limits of Limitador as files of envoyproxy/ratelimit: the namespace is the domain, conditions are values of a
//! descriptor, variables its keys without a value.

use std::collections::HashSet;
use std::fmt::Write;

use serde_json::json;
use slidegate::MAX_NAME_BYTES;

use super::{Carried, Limit};
use crate::cli::import::write::{Imported, Written};
use slidegate_config::Problem;
use slidegate_config::envoy::Unit;

const BEGINNING: &str = "\
# Made by `slidegate import limitador --to envoy`, for `slidegate serve --envoy-config DIR`.
# A descriptor meets a limit if it has exactly these entries in this order. Limitador lets a descriptor have more of them,
# in any order, and counts a request on every limit that it meets; here the most specific one counts it.
";

/// One level of a file.
#[derive(Default)]
struct Node {
    key: String,
    value: Option<String>,
    /// The limit, as the file writes it.
    rate_limit: Option<String>,
    below: Vec<Self>,
}

impl Node {
    /// The key and the value as the format puts them together.
    fn composite(&self) -> String {
        composite(&self.key, self.value.as_deref())
    }

    fn write(&self, text: &mut String, depth: usize) {
        let indent = "  ".repeat(2 * depth + 1);
        let _ = writeln!(text, "{indent}- key: {}", json!(self.key));
        if let Some(value) = &self.value {
            let _ = writeln!(text, "{indent}  value: {}", json!(value));
        }
        if let Some(rate_limit) = &self.rate_limit {
            let _ = writeln!(text, "{indent}  rate_limit: {rate_limit}");
        }
        if !self.below.is_empty() {
            let _ = writeln!(text, "{indent}  descriptors:");
            self.below.iter().for_each(|node| node.write(text, depth + 1));
        }
    }
}

fn composite(key: &str, value: Option<&str>) -> String {
    value.map_or_else(|| key.to_owned(), |value| format!("{key}_{value}"))
}

pub(super) fn write(limits: &[Limit], mut left_out: Vec<Problem>) -> Carried {
    let mut domains: Vec<(&str, Node)> = Vec::new();
    let mut told = String::new();
    for limit in limits {
        let place = domains.iter().position(|(name, _)| *name == limit.namespace);
        let place = place.unwrap_or_else(|| {
            domains.push((&limit.namespace, Node::default()));
            domains.len() - 1
        });
        match add(&mut domains[place].1, limit) {
            Ok(summary) => {
                let _ = writeln!(told, "{}: {summary}", limit.namespace);
            }
            Err(problem) => left_out.push(problem),
        }
    }
    let mut names = HashSet::new();
    let mut files = Vec::with_capacity(domains.len());
    for (domain, root) in domains.iter().filter(|(_, root)| !root.below.is_empty()) {
        let mut text = format!("{BEGINNING}domain: {}\ndescriptors:\n", json!(domain));
        root.below.iter().for_each(|node| node.write(&mut text, 0));
        files.push(Written { name: Some(file_name(domain, &mut names)), text });
    }
    // Beside the first of them, for there is no file for all.
    if let Some(first) = files.first_mut() {
        for Problem { field, message, .. } in &left_out {
            let _ = writeln!(first.text, "# left out: {field}: {message}");
        }
    }
    Carried { imported: Imported { told, files }, left_out }
}

/// Adds the limit below its domain, and returns a summary of it.
fn add(root: &mut Node, limit: &Limit) -> Result<String, Problem> {
    let path = path(limit)?;
    let rate_limit = rate_limit(limit)?;
    let mut node = root;
    for (key, value) in &path {
        let composite = composite(key, value.as_deref());
        let place = match node.below.iter().position(|below| below.composite() == composite) {
            Some(place) if node.below[place].key == *key => place,
            Some(_) => {
                let message =
                    format!("{composite:?} is also another key and value; the format takes both for one");
                return Err(limit.problem("", message));
            }
            None => {
                node.below.push(Node { key: key.clone(), value: value.clone(), ..Node::default() });
                node.below.len() - 1
            }
        };
        node = &mut node.below[place];
    }
    if node.rate_limit.is_some() {
        let message = "another limit is for the same descriptor; the format has one for each";
        return Err(limit.problem("", message));
    }
    let described: Vec<String> = path
        .iter()
        .map(|(key, value)| value.as_ref().map_or_else(|| key.clone(), |value| format!("{key}={value}")))
        .collect();
    let summary = format!("descriptor [{}]: {rate_limit}", described.join(", "));
    node.rate_limit = Some(rate_limit);
    Ok(summary)
}

/// The entries of a descriptor that meets the limit: conditions first, then variables.
fn path(limit: &Limit) -> Result<Vec<(String, Option<String>)>, Problem> {
    let mut path: Vec<(String, Option<String>)> = Vec::new();
    for (place, (key, value)) in limit.conditions.iter().enumerate() {
        let field = format!(".conditions[{place}]");
        if value.is_empty() || value.contains('*') {
            let message = format!("{value:?} cannot be carried over; in the format it stands for any value");
            return Err(limit.problem(&field, message));
        }
        match path.iter().find(|(known, _)| known == key) {
            None => path.push((key.clone(), Some(value.clone()))),
            Some((_, known)) if known.as_ref() == Some(value) => {}
            Some(_) => {
                return Err(
                    limit.problem(&field, format!("{key:?} has another value before; no request has both"))
                );
            }
        }
    }
    for key in &limit.variables {
        // One whose value is given is the same for all.
        if path.iter().all(|(known, _)| known != key) {
            path.push((key.clone(), None));
        }
    }
    if path.is_empty() {
        let message = "it is for every request of its namespace; the format needs a condition or a variable";
        return Err(limit.problem("", message));
    }
    Ok(path)
}

fn rate_limit(limit: &Limit) -> Result<String, Problem> {
    let Some(unit) = Unit::of_seconds(limit.seconds) else {
        let message =
            format!("{} s cannot be carried over; the format counts by {}", limit.seconds, Unit::names());
        return Err(limit.problem(".seconds", message));
    };
    let Ok(requests) = u32::try_from(limit.max_value) else {
        let message =
            format!("{} cannot be carried over; the format takes up to {}", limit.max_value, u32::MAX);
        return Err(limit.problem(".max_value", message));
    };
    let is_name = |name: &&String| name.len() <= MAX_NAME_BYTES && !name.chars().any(char::is_control);
    let name = limit.name.as_ref().filter(is_name);
    let name = name.map_or_else(String::new, |name| format!(", name: {}", json!(name)));
    Ok(format!("{{unit: {}, requests_per_unit: {requests}{name}}}", unit.name()))
}

/// Returns a file name for a domain, which may hold any characters. No two names differ only in case.
fn file_name(domain: &str, used: &mut HashSet<String>) -> String {
    let is_plain = |character: char| character.is_ascii_alphanumeric() || "._-".contains(character);
    let plain: String =
        domain.chars().map(|character| if is_plain(character) { character } else { '-' }).collect();
    let plain = match plain.trim_start_matches('.') {
        "" => "domain",
        plain => plain,
    };
    (1_u32..=u32::MAX)
        .map(|place| if place == 1 { format!("{plain}.yaml") } else { format!("{plain}.{place}.yaml") })
        .find(|name| used.insert(name.to_ascii_lowercase()))
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::file_name;

    #[test]
    fn file_names_are_unique_and_visible() {
        let mut used = HashSet::new();
        let domains = ["a/b", "a b", "a-b.2", "A-B", ".", "..", ".hidden"];
        let names = domains.map(|domain| file_name(domain, &mut used));
        let expected = [
            "a-b.yaml",
            "a-b.2.yaml",
            "a-b.2.2.yaml",
            "A-B.3.yaml",
            "domain.yaml",
            "domain.2.yaml",
            "hidden.yaml",
        ];
        assert_eq!(names, expected);
    }
}
