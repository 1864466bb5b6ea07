//! `slidegate block`.

use std::process::ExitCode;
use std::time::Duration;

use slidegate::parse_window;

use super::{Failure, decide};

/// Deny a key for a time, whatever its count; `slidegate reset` ends the block
#[derive(Debug, clap::Args)]
#[group(id = "block")]
pub(super) struct Arguments {
    /// Duration of the block, 1ms to 366d
    #[arg(long = "for", value_name = "TIME", value_parser = parse_duration)]
    duration: Duration,

    #[command(flatten)]
    common: decide::Arguments,
}

fn parse_duration(text: &str) -> Result<Duration, String> {
    parse_window(text).map_err(|error| error.message().to_owned())
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    decide::block(&arguments.common, arguments.duration)
}
