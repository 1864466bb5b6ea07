//! Collection of the problems of a file while it is read.

use std::path::PathBuf;

use crate::problem::Problem;

/// Maximum number of problems that are listed; further ones are only counted.
const MAX_PROBLEMS: usize = 1000;

/// Problems found so far, and the references of the file.
#[derive(Debug)]
pub(crate) struct Diagnostics {
    problems: Vec<Problem>,
    omitted: usize,
    /// Whether to read the files and variables that the file names.
    pub(crate) follows_references: bool,
    /// Files that contain tokens.
    pub(crate) token_files: Vec<PathBuf>,
}

impl Diagnostics {
    pub(crate) fn new(follows_references: bool) -> Self {
        Self { problems: Vec::new(), omitted: 0, follows_references, token_files: Vec::new() }
    }

    /// Adds a problem with the field at `path`.
    pub(crate) fn report(&mut self, line: u64, path: impl Into<String>, message: impl Into<String>) {
        self.add(Problem::at(line, path, message));
    }

    pub(crate) fn add(&mut self, problem: Problem) {
        if self.is_full() {
            self.omitted += 1;
        } else {
            self.problems.push(problem);
        }
    }

    /// Returns whether further problems are only counted.
    pub(crate) fn is_full(&self) -> bool {
        self.problems.len() == MAX_PROBLEMS
    }

    pub(crate) fn into_problems(mut self) -> Vec<Problem> {
        if self.omitted > 0 {
            let message = format!("and {} more problems", self.omitted);
            self.problems.push(Problem::without_line("yaml", message));
        }
        self.problems
    }
}

/// Maximum edit distance of a misspelled name.
const MAX_TYPO_DISTANCE: usize = 2;

/// Returns the name that `written` most likely misspells.
pub(crate) fn nearest<'a>(written: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    // Longer texts are close to no name, and expensive to compare.
    if written.len() > 64 {
        return None;
    }
    let written = written.to_lowercase();
    let distances = names.map(|name| (strsim::damerau_levenshtein(&written, name), name));
    let near =
        distances.filter(|(distance, name)| *distance <= MAX_TYPO_DISTANCE && *distance * 2 < name.len());
    near.min_by_key(|(distance, _)| *distance).map(|(_, name)| name)
}

/// Returns a hint such as `; did you mean quotas?`, or an empty text.
pub(crate) fn hint<'a>(written: &str, names: impl Iterator<Item = &'a str>) -> String {
    nearest(written, names).map(|name| format!("; did you mean {name}?")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_typo_matches_a_name() {
        let names = ["quotas", "key", "mode", "headers", "on_failure"];
        let table = [
            ("qoutas", Some("quotas")),
            ("Quotas", Some("quotas")),
            ("quota", Some("quotas")),
            ("header", Some("headers")),
            ("on-failure", Some("on_failure")),
            ("keys", Some("key")),
            ("limit", None),
            ("made", Some("mode")),
            ("", None),
        ];
        for (written, expected) in table {
            assert_eq!(nearest(written, names.into_iter()), expected, "{written}");
        }
    }
}
