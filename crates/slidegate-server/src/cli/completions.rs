//! `slidegate completions`.

use std::process::ExitCode;

use clap::CommandFactory;
use clap_complete::{Shell, generate};

use super::{Command, Failure, print};

/// Print the completion script for a shell, to be evaluated or saved in the shell's folder for completions
#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    /// Name of the shell
    #[arg(value_name = "SHELL")]
    shell: Shell,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let mut script = Vec::new();
    generate(arguments.shell, &mut Command::command(), "slidegate", &mut script);
    print(script).map(|()| ExitCode::SUCCESS)
}
