//! Problems of a file, with their lines.

use std::fmt;

/// One problem of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Line, from 1; `None` for a problem of the whole file.
    pub line: Option<u64>,
    /// Path of the field: `policies.api.quotas[0].limit`.
    pub field: String,
    /// Description of the problem and of valid values.
    pub message: String,
}

impl Problem {
    pub fn without_line(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self { line: None, field: on_one_line(field.into()), message: on_one_line(message.into()) }
    }

    pub fn at(line: u64, field: impl Into<String>, message: impl Into<String>) -> Self {
        Self { line: (line > 0).then_some(line), ..Self::without_line(field, message) }
    }
}

/// Escapes control characters, because names in a file may contain them and a problem is one line.
fn on_one_line(text: String) -> String {
    if !text.contains(char::is_control) {
        return text;
    }
    let escape = |character: char| match character {
        character if character.is_control() => character.escape_default().to_string(),
        character => character.to_string(),
    };
    text.chars().map(escape).collect()
}

/// All problems of a file. Displayed as one `file:line: field: message` per line, in the order of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problems {
    file: String,
    problems: Vec<Problem>,
}

impl Problems {
    pub fn new(file: &str, mut problems: Vec<Problem>) -> Self {
        problems.sort_by_key(|problem| problem.line.unwrap_or(u64::MAX));
        Self { file: file.to_owned(), problems }
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, Problem { line, field, message }) in self.problems.iter().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            match line {
                Some(line) => write!(f, "{}:{line}: {field}: {message}", self.file)?,
                None => write!(f, "{}: {field}: {message}", self.file)?,
            }
        }
        Ok(())
    }
}

impl std::error::Error for Problems {}
