//! Converts limits of Limitador to policies or to files of envoyproxy/ratelimit, as far as these can express them.

mod envoy;
mod file;
mod policies;

use std::fs;
use std::path::Path;

use slidegate::Algorithm;

use self::file::{Limits, parse};
use super::{Imported, ImportedOutput};
use crate::{Problem, Problems};

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

/// Converts a limits file to a configuration file with one policy for each limit.
pub fn to_policies(path: &Path, algorithm: Algorithm) -> Result<Imported, Vec<Problems>> {
    let Limits { valid, mut left_out } = load(path)?;
    let (summary, text) = policies::write(&valid, algorithm, &mut left_out);
    let left_out = problems_left_out(path, &summary, left_out)?;
    Ok(Imported { left_out, ..Imported::config(path, summary, text)? })
}

/// Converts a limits file to files of envoyproxy/ratelimit, one for each namespace.
pub fn to_envoy(path: &Path) -> Result<Imported, Vec<Problems>> {
    let Limits { valid, mut left_out } = load(path)?;
    let (summary, files) = envoy::write(&valid, &mut left_out);
    let left_out = problems_left_out(path, &summary, left_out)?;
    Ok(Imported { summary, output: ImportedOutput::Folder(files), left_out })
}

fn load(path: &Path) -> Result<Limits, Vec<Problems>> {
    let text = fs::read_to_string(path)
        .map_err(|error| vec![Problem::without_line("file", format!("cannot be read: {error}"))]);
    text.and_then(|text| parse(&text)).map_err(|problems| vec![of_file(path, problems)])
}

/// Returns the problems of the limits that are left out, as an error if no limit remains.
fn problems_left_out(
    path: &Path,
    summary: &str,
    left_out: Vec<Problem>,
) -> Result<Option<Problems>, Vec<Problems>> {
    if left_out.is_empty() {
        return Ok(None);
    }
    let problems = of_file(path, left_out);
    if summary.is_empty() { Err(vec![problems]) } else { Ok(Some(problems)) }
}

fn of_file(path: &Path, problems: Vec<Problem>) -> Problems {
    Problems::new(&path.display().to_string(), problems)
}
