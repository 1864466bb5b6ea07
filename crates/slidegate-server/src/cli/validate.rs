//! `slidegate validate`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use slidegate_config::envoy::{Domains, EnvoySettings};
use slidegate_config::{Config, Problems};

use super::explain::explain_body;
use super::{Failure, print};

/// Check configuration files and list every problem as `file:line: field: message`
#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    /// Files to check; a folder holds files of envoyproxy/ratelimit, and `-` is standard input
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,

    /// Explain which policy, tier and quotas apply to a request, and why. REQUEST is a body of `/v1/check`, such as
    /// `{"policy": "api", "key": "user:1"}`, or has `peer` and `headers` in place of the key
    #[arg(long, value_name = "REQUEST")]
    explain: Option<String>,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let mut problems = Vec::new();
    for file in &arguments.files {
        match &arguments.explain {
            Some(_) if file.is_dir() => {
                let file = file.display();
                return Err(Failure::new(format!(
                    "{file}: --explain needs a configuration file, and this is a folder of envoyproxy/ratelimit; omit \
                     --explain to check the folder"
                )));
            }
            Some(request) => match load(file) {
                Ok(config) => {
                    let explained = explain_body(&config, request);
                    print(explained.map_err(|rejection| Failure::new(rejection.to_string()))?)?;
                }
                Err(of_file) => problems.push(of_file),
            },
            None => match validate(file) {
                Ok(summary) => print(format!("{}: valid; {summary}\n", file.display()))?,
                Err(of_folder) => problems.extend(of_folder),
            },
        }
    }
    if problems.is_empty() { Ok(ExitCode::SUCCESS) } else { Err(Failure::Files(problems)) }
}

fn load(file: &Path) -> Result<Config, Problems> {
    if file == Path::new("-") { Config::load_stdin() } else { Config::load(file) }
}

/// Validates a file or a folder and returns the names of its policies or domains.
fn validate(file: &Path) -> Result<String, Vec<Problems>> {
    let list = |names: Vec<&str>| if names.is_empty() { "none".to_owned() } else { names.join(", ") };
    if file.is_dir() {
        let domains = Domains::load(file, EnvoySettings::default())?;
        return Ok(format!("domains: {}", list(domains.names())));
    }
    let config = load(file).map_err(|problems| vec![problems])?;
    Ok(format!("policies: {}", list(config.policies.names().collect())))
}
