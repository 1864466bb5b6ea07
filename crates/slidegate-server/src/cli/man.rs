//! `slidegate man`.

use std::process::ExitCode;

use clap::CommandFactory;
use clap_mangen::Man;

use super::{Command, Failure, print};

/// Print the manual page of slidegate, or of one command
#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    /// Name of the command; without it, the page lists all commands
    #[arg(value_name = "COMMAND")]
    command: Option<String>,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let mut slidegate = Command::command();
    // Gives each command its full name, such as `slidegate check`.
    slidegate.build();
    let command = match &arguments.command {
        None => slidegate,
        Some(name) => slidegate.find_subcommand(name).cloned().ok_or_else(|| {
            let known: Vec<_> = slidegate.get_subcommands().map(clap::Command::get_name).collect();
            Failure::new(format!("COMMAND: unknown command {name:?}; known: {}", known.join(", ")))
        })?,
    };
    let mut page = Vec::new();
    Man::new(command).render(&mut page).map_err(|error| Failure::new(error.to_string()))?;
    print(page).map(|()| ExitCode::SUCCESS)
}
