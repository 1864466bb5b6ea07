//! `slidegate validate`.

use std::path::PathBuf;
use std::process::ExitCode;

use super::Failure;
use crate::config::Config;

/// Check configuration files; every problem is listed as `file:line: field: message`
#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    /// The files
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let mut refused = Vec::new();
    for file in &arguments.files {
        match Config::load(file) {
            Ok(config) => {
                let names: Vec<_> = config.policies.names().collect();
                let names = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
                println!("{}: valid; policies: {names}", file.display());
            }
            Err(problems) => refused.push(problems),
        }
    }
    if refused.is_empty() { Ok(ExitCode::SUCCESS) } else { Err(Failure::Files(refused)) }
}
