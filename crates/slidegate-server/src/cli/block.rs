//! `slidegate block`.

use std::process::ExitCode;
use std::time::Duration;

use slidegate::parse_window;

use super::{Failure, decide};

/// Deny a key for a time, whatever it has spent; a reset ends that
#[derive(Debug, clap::Args)]
#[group(id = "block")]
pub(super) struct Arguments {
    /// For how long, 1ms to 366d
    #[arg(long = "for", value_name = "TIME", value_parser = parse_span)]
    span: Duration,

    #[command(flatten)]
    one: decide::Arguments,
}

fn parse_span(text: &str) -> Result<Duration, String> {
    parse_window(text).map_err(|error| error.message().to_owned())
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    decide::block(&arguments.one, arguments.span)
}
