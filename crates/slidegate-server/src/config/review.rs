//! What is found wrong while a file is read: all of it, not only the first.

use std::path::PathBuf;

use super::problem::Problem;

/// How many problems are listed before they are only counted.
const MOST_PROBLEMS: usize = 1000;

/// Takes note of everything that is wrong.
#[derive(Debug)]
pub(super) struct Review {
    problems: Vec<Problem>,
    left_out: usize,
    /// Whether files and variables that the file names are read too.
    pub(super) looks_around: bool,
    /// The files that tokens are in.
    pub(super) token_files: Vec<PathBuf>,
}

impl Review {
    pub(super) fn new(looks_around: bool) -> Self {
        Self { problems: Vec::new(), left_out: 0, looks_around, token_files: Vec::new() }
    }

    /// Takes note of a problem with the field at `path`.
    pub(super) fn refuse(&mut self, line: u64, path: impl Into<String>, message: impl Into<String>) {
        if self.is_full() {
            self.left_out += 1;
            return;
        }
        self.problems.push(Problem::at(line, path, message));
    }

    /// Whether what is wrong is only counted from now on.
    pub(super) fn is_full(&self) -> bool {
        self.problems.len() == MOST_PROBLEMS
    }

    pub(super) fn into_problems(mut self) -> Vec<Problem> {
        if self.left_out > 0 {
            let message = format!("and {} more problems", self.left_out);
            self.problems.push(Problem::without_line("yaml", message));
        }
        self.problems
    }
}

/// How far a name may be from another to be taken for a slip of the pen.
const NEAR: usize = 2;

/// Which of `names` was most likely meant.
pub(super) fn nearest<'a>(written: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    // Longer ones are near nothing, and cost time to compare.
    if written.len() > 64 {
        return None;
    }
    let written = written.to_lowercase();
    let distances = names.map(|name| (strsim::damerau_levenshtein(&written, name), name));
    let near = distances.filter(|(distance, name)| *distance <= NEAR && *distance * 2 < name.len());
    near.min_by_key(|(distance, _)| *distance).map(|(_, name)| name)
}

/// `; did you mean quotas?`, or nothing.
pub(super) fn hint<'a>(written: &str, names: impl Iterator<Item = &'a str>) -> String {
    nearest(written, names).map(|name| format!("; did you mean {name}?")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_slip_of_the_pen_is_near() {
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
