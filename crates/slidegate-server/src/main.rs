//! The command `slidegate`.

use std::process::ExitCode;

use clap::Parser;
use slidegate_server::command::{Command, run};

fn main() -> ExitCode {
    match run(Command::parse()) {
        Ok(code) => code,
        Err(failure) => {
            eprintln!("{failure}");
            ExitCode::from(2)
        }
    }
}
