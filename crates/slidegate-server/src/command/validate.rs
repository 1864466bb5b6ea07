//! `slidegate validate`.

use std::path::PathBuf;
use std::process::ExitCode;

use super::Failure;
use crate::config::Config;
use crate::explain::explain;

/// Check configuration files; every problem is listed as `file:line: field: message`
#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    /// The files
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,

    /// Say which policy, tier and quotas a request would meet, and why: the body of `/v1/check`, such as
    /// `{"policy": "api", "key": "user:1"}`, or with `peer` and `headers` in place of the key
    #[arg(long, value_name = "REQUEST")]
    explain: Option<String>,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let mut refused = Vec::new();
    for file in &arguments.files {
        match (Config::load(file), &arguments.explain) {
            (Ok(config), Some(request)) => {
                let explained = explain(&config, request);
                print!("{}", explained.map_err(|refusal| Failure::new(refusal.to_string()))?);
            }
            (Ok(config), None) => {
                let names: Vec<_> = config.policies.names().collect();
                let names = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
                println!("{}: valid; policies: {names}", file.display());
            }
            (Err(problems), _) => refused.push(problems),
        }
    }
    if refused.is_empty() { Ok(ExitCode::SUCCESS) } else { Err(Failure::Files(refused)) }
}
