//! `slidegate schema`.

use std::process::ExitCode;

use super::{Failure, print};

/// Print the JSON Schema of the configuration file, for editors
#[derive(Debug, clap::Args)]
pub(super) struct Arguments {}

pub(super) fn run(_: &Arguments) -> Result<ExitCode, Failure> {
    let schema = serde_json::to_string_pretty(&slidegate_config::schema());
    let schema = schema.map_err(|error| Failure::new(error.to_string()))?;
    print(format!("{schema}\n")).map(|()| ExitCode::SUCCESS)
}
