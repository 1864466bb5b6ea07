//! `slidegate completions`.

use std::process::ExitCode;

use clap::CommandFactory;
use clap_complete::{Shell, generate};

use super::{Command, Failure, print};

/// Print what makes a shell complete these commands, for `eval` or a file of the shell's
#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    /// The shell
    #[arg(value_name = "SHELL")]
    shell: Shell,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let mut script = Vec::new();
    generate(arguments.shell, &mut Command::command(), "slidegate", &mut script);
    print(script).map(|()| ExitCode::SUCCESS)
}
