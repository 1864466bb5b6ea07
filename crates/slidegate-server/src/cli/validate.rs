//! `slidegate validate`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use super::{Failure, print};
use crate::explain::explain;
use slidegate_config::envoy::{Domains, Settings};
use slidegate_config::{Config, Problems};

/// Check configuration files; every problem is listed as `file:line: field: message`
#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    /// The files; a folder is one of envoyproxy/ratelimit, and `-` is what is piped in
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
        match &arguments.explain {
            Some(_) if file.is_dir() => {
                let file = file.display();
                return Err(Failure::new(format!(
                    "{file}: --explain goes by the policies of a file, and this is a folder of envoyproxy/ratelimit; \
                     leave it out to check the folder"
                )));
            }
            Some(request) => match load(file) {
                Ok(config) => {
                    let explained = explain(&config, request);
                    print(explained.map_err(|rejection| Failure::new(rejection.to_string()))?)?;
                }
                Err(problems) => refused.push(problems),
            },
            None => match validate(file) {
                Ok(what) => print(format!("{}: valid; {what}\n", file.display()))?,
                Err(problems) => refused.extend(problems),
            },
        }
    }
    if refused.is_empty() { Ok(ExitCode::SUCCESS) } else { Err(Failure::Files(refused)) }
}

fn load(file: &Path) -> Result<Config, Problems> {
    if file == Path::new("-") { Config::load_stdin() } else { Config::load(file) }
}

/// What is in it.
fn validate(file: &Path) -> Result<String, Vec<Problems>> {
    let listed = |names: Vec<&str>| if names.is_empty() { "none".to_owned() } else { names.join(", ") };
    if file.is_dir() {
        let domains = Domains::load(file, Settings::default())?;
        return Ok(format!("domains: {}", listed(domains.names())));
    }
    let config = load(file).map_err(|problems| vec![problems])?;
    Ok(format!("policies: {}", listed(config.policies.names().collect())))
}
