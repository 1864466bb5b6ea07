//! The binary `slidegate`.

use std::process::ExitCode;

use slidegate_server::cli::{Command, run};

fn main() -> ExitCode {
    match run(Command::from_arguments()) {
        Ok(code) => code,
        Err(failure) => {
            eprintln!("{failure}");
            ExitCode::from(2)
        }
    }
}
