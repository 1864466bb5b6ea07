//! Converts limits of Limitador to files of envoyproxy/ratelimit. A namespace becomes a domain, a condition an entry with a
//! value, and a variable an entry without a value.

use std::collections::HashSet;
use std::fmt::Write;

use serde_json::json;
use slidegate::MAX_NAME_BYTES;

use super::Limit;
use crate::Problem;
use crate::envoy::Unit;
use crate::import::ImportedFile;

const HEADER: &str = "\
# Made by `slidegate import limitador --to envoy`, for `slidegate serve --envoy-config DIR`.
# A descriptor matches a limit if it has exactly these entries in this order. In Limitador a descriptor may have further
# entries, in any order, and a request counts on every limit that it matches; here only on the most specific one.
";

/// Node of the descriptor tree of a file.
#[derive(Default)]
struct Node {
    key: String,
    value: Option<String>,
    /// Limit in the format of the file.
    rate_limit: Option<String>,
    children: Vec<Self>,
}

impl Node {
    /// Returns the key and the value as envoyproxy/ratelimit joins them.
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
        if !self.children.is_empty() {
            let _ = writeln!(text, "{indent}  descriptors:");
            self.children.iter().for_each(|node| node.write(text, depth + 1));
        }
    }
}

fn composite(key: &str, value: Option<&str>) -> String {
    value.map_or_else(|| key.to_owned(), |value| format!("{key}_{value}"))
}

/// Returns the summary and the files. Adds the problems of limits that cannot be converted to `left_out`.
pub(super) fn write(limits: &[Limit], left_out: &mut Vec<Problem>) -> (String, Vec<ImportedFile>) {
    let mut domains: Vec<(&str, Node)> = Vec::new();
    let mut summary = String::new();
    for limit in limits {
        let index = domains.iter().position(|(name, _)| *name == limit.namespace);
        let index = index.unwrap_or_else(|| {
            domains.push((&limit.namespace, Node::default()));
            domains.len() - 1
        });
        match add(&mut domains[index].1, limit) {
            Ok(line) => {
                let _ = writeln!(summary, "{}: {line}", limit.namespace);
            }
            Err(problem) => left_out.push(problem),
        }
    }
    let mut names = HashSet::new();
    let mut files = Vec::with_capacity(domains.len());
    for (domain, root) in domains.iter().filter(|(_, root)| !root.children.is_empty()) {
        let mut text = format!("{HEADER}domain: {}\ndescriptors:\n", json!(domain));
        root.children.iter().for_each(|node| node.write(&mut text, 0));
        files.push(ImportedFile { name: file_name(domain, &mut names), text });
    }
    // In the first file, because none belongs to all namespaces.
    if let Some(first) = files.first_mut() {
        for Problem { field, message, .. } in left_out.iter() {
            let _ = writeln!(first.text, "# left out: {field}: {message}");
        }
    }
    (summary, files)
}

/// Adds the limit to the tree of its domain and returns its line of the summary.
fn add(root: &mut Node, limit: &Limit) -> Result<String, Problem> {
    let path = path(limit)?;
    let rate_limit = rate_limit(limit)?;
    let mut node = root;
    for (key, value) in &path {
        let composite = composite(key, value.as_deref());
        let index = match node.children.iter().position(|child| child.composite() == composite) {
            Some(index) if node.children[index].key == *key => index,
            Some(_) => {
                let message = format!(
                    "{composite:?} is also another key and value; envoyproxy/ratelimit does not distinguish them"
                );
                return Err(limit.problem("", message));
            }
            None => {
                node.children.push(Node { key: key.clone(), value: value.clone(), ..Node::default() });
                node.children.len() - 1
            }
        };
        node = &mut node.children[index];
    }
    if node.rate_limit.is_some() {
        let message = "another limit has the same descriptor; envoyproxy/ratelimit allows one limit for each";
        return Err(limit.problem("", message));
    }
    let entries: Vec<String> = path
        .iter()
        .map(|(key, value)| value.as_ref().map_or_else(|| key.clone(), |value| format!("{key}={value}")))
        .collect();
    let line = format!("descriptor [{}]: {rate_limit}", entries.join(", "));
    node.rate_limit = Some(rate_limit);
    Ok(line)
}

/// Returns the entries of a descriptor that matches the limit: conditions first, then variables.
fn path(limit: &Limit) -> Result<Vec<(String, Option<String>)>, Problem> {
    let mut path: Vec<(String, Option<String>)> = Vec::new();
    for (index, (key, value)) in limit.conditions.iter().enumerate() {
        let field = format!(".conditions[{index}]");
        if value.is_empty() || value.contains('*') {
            let message =
                format!("{value:?} cannot be converted; in envoyproxy/ratelimit it matches any value");
            return Err(limit.problem(&field, message));
        }
        match path.iter().find(|(known, _)| known == key) {
            None => path.push((key.clone(), Some(value.clone()))),
            Some((_, known)) if known.as_ref() == Some(value) => {}
            Some(_) => {
                return Err(limit.problem(
                    &field,
                    format!("{key:?} has another value in an earlier condition; no request matches both"),
                ));
            }
        }
    }
    for key in &limit.variables {
        // The value of a variable with a condition is the same for all requests.
        if path.iter().all(|(known, _)| known != key) {
            path.push((key.clone(), None));
        }
    }
    if path.is_empty() {
        let message = "the limit applies to every request of its namespace; envoyproxy/ratelimit needs a condition or a variable";
        return Err(limit.problem("", message));
    }
    Ok(path)
}

/// Returns the limit in the format of the file.
fn rate_limit(limit: &Limit) -> Result<String, Problem> {
    let Some(unit) = Unit::of_seconds(limit.seconds) else {
        let message = format!(
            "{} s cannot be converted; the units of envoyproxy/ratelimit are {}",
            limit.seconds,
            Unit::names()
        );
        return Err(limit.problem(".seconds", message));
    };
    let Ok(requests) = u32::try_from(limit.max_value) else {
        let message = format!(
            "{} cannot be converted; the maximum of envoyproxy/ratelimit is {}",
            limit.max_value,
            u32::MAX
        );
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
        .map(|number| if number == 1 { format!("{plain}.yaml") } else { format!("{plain}.{number}.yaml") })
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
