//! Configuration of envoyproxy/ratelimit, read unchanged: a folder of YAML files, one per domain.

mod build;
mod domain_tree;
mod domains;
mod file;
mod key;
mod rate_limit;
mod rule;
mod unit;
mod wildcard;

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use slidegate::Algorithm;

use self::build::RuleBuilder;
pub use self::domain_tree::DomainTree;
pub use self::domains::Domains;
use self::file::{DOMAIN, FILE, non_empty};
pub use self::key::CounterKey;
pub use self::rule::{Amount, LimitedAmount, Rule, quota};
pub use self::unit::Unit;
use crate::fields::diagnostics::Diagnostics;
use crate::fields::field::Fields;
use crate::fields::tree::{self, Tags};
use crate::{Problem, Problems};

/// Settings outside the files of envoyproxy/ratelimit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EnvoySettings {
    /// Algorithm of all limits.
    pub algorithm: Algorithm,
    /// Responses that carry rate-limit headers.
    pub headers: HeaderMode,
    /// Form of the body of a denial.
    pub body: DenialBody,
}

impl Default for EnvoySettings {
    /// Returns the behaviour closest to envoyproxy/ratelimit.
    fn default() -> Self {
        Self { algorithm: Algorithm::FixedWindow, headers: HeaderMode::Denied, body: DenialBody::Text }
    }
}

/// Responses that carry rate-limit headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum HeaderMode {
    /// None.
    Off,
    /// Denials.
    Denied,
    /// All.
    Always,
}

/// Form of the body of a denial.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum DenialBody {
    /// A sentence, which is the `grpc-message` for clients of gRPC.
    Text,
    /// A problem document.
    #[value(alias = "true")]
    Problem,
    /// None.
    #[value(alias = "false")]
    Off,
}

impl Domains {
    /// Reads a folder or a single file, or returns all problems.
    pub fn load(path: &Path, settings: EnvoySettings) -> Result<Self, Vec<Problems>> {
        let files =
            files(path).map_err(|error| vec![file_problem(path, format!("cannot be read: {error}"))])?;
        if files.is_empty() {
            return Err(vec![file_problem(path, "no file in this folder ends in .yaml or .yml")]);
        }
        let mut domains = Self { settings, by_name: HashMap::new() };
        let mut owners: HashMap<String, PathBuf> = HashMap::new();
        let mut problems = Vec::new();
        let (mut limit_count, mut policy_names) = (0, HashSet::new());
        for file in files {
            let mut builder = RuleBuilder {
                settings,
                limit_count: &mut limit_count,
                policy_names: &mut policy_names,
                diagnostics: Diagnostics::new(false),
            };
            if let Err(problem) = domains.add(&file, &mut builder, &mut owners) {
                builder.diagnostics.add(problem);
            }
            let found = builder.diagnostics.into_problems();
            if !found.is_empty() {
                problems.push(Problems::new(&file.display().to_string(), found));
            }
        }
        if problems.is_empty() { Ok(domains) } else { Err(problems) }
    }

    /// Adds the domain of a file, and its problems to the builder. Returns the problem of a file that cannot be parsed.
    /// `owners` are the files of the other domains.
    fn add(
        &mut self,
        path: &Path,
        builder: &mut RuleBuilder<'_>,
        owners: &mut HashMap<String, PathBuf>,
    ) -> Result<(), Problem> {
        let text = fs::read_to_string(path)
            .map_err(|error| Problem::without_line("file", format!("cannot be read: {error}")))?;
        let missing = "missing; every file needs one domain";
        let root = tree::parse(&text, Tags::Core)?.filter(|root| !root.is_null());
        let root = root.ok_or_else(|| Problem::without_line("domain", missing))?;
        let Some(fields) = Fields::open(&root, "", FILE, &mut builder.diagnostics) else { return Ok(()) };
        let name = non_empty(&fields, &DOMAIN, 0, missing, &mut builder.diagnostics);
        let node = builder.domain(name.as_deref().unwrap_or_default(), &fields);
        let Some(name) = name else { return Ok(()) };
        if let Some(owner) = owners.get(&name) {
            let message = format!("{name:?} is already defined in {}", owner.display());
            builder.diagnostics.report(fields.line_of("domain"), "domain", message);
        }
        owners.insert(name.clone(), path.to_owned());
        self.by_name.insert(name, node);
        Ok(())
    }
}

fn file_problem(path: &Path, message: impl Into<String>) -> Problems {
    Problems::new(&path.display().to_string(), vec![Problem::without_line("file", message)])
}

/// Returns the YAML files of a folder, sorted by name, without hidden files such as the `..data` links of Kubernetes.
pub fn files(path: &Path) -> io::Result<Vec<PathBuf>> {
    if !fs::metadata(path)?.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let mut files = Vec::new();
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        let name = entry.file_name();
        let is_yaml = Path::new(&name).extension().is_some_and(|ending| ending == "yaml" || ending == "yml");
        if is_yaml && !name.as_encoded_bytes().starts_with(b".") {
            files.push(entry.path());
        }
    }
    files.sort();
    Ok(files)
}
