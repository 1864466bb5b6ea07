//! `slidegate man`.

use std::process::ExitCode;

use clap::CommandFactory;
use clap_mangen::Man;

use super::{Command, Failure, print};

/// Print the manual page, or that of one command
#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    /// The command; all of them in short if left out
    #[arg(value_name = "COMMAND")]
    command: Option<String>,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let mut whole = Command::command();
    // Gives each command the name that it is called by.
    whole.build();
    let chosen = match &arguments.command {
        None => whole,
        Some(name) => whole.find_subcommand(name).cloned().ok_or_else(|| {
            let known: Vec<_> = whole.get_subcommands().map(clap::Command::get_name).collect();
            Failure::new(format!("COMMAND: there is no {name:?}; there is {}", known.join(", ")))
        })?,
    };
    let mut page = Vec::new();
    Man::new(chosen).render(&mut page).map_err(|error| Failure::new(error.to_string()))?;
    print(page).map(|()| ExitCode::SUCCESS)
}
