//! `slidegate import`: limits of others in our own format.

mod envoy;
mod limitador;
mod write;

use std::fs::File;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Subcommand;
use slidegate::Algorithm;

use self::write::Imported;
use super::{Failure, print};
use crate::config::{Config, Problems};

/// Write the limits of another service as a configuration file, and say what was understood
#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    #[command(subcommand)]
    from: From,
}

#[derive(Debug, Subcommand)]
enum From {
    /// From a folder of envoyproxy/ratelimit, or one of its files
    Envoy(FromArguments),
    /// From a limits file of Limitador
    Limitador(FromArguments),
}

#[derive(Debug, clap::Args)]
struct FromArguments {
    /// The folder or the file
    #[arg(value_name = "PATH")]
    path: PathBuf,

    /// How limits are to be counted
    #[arg(long, value_name = "NAME", default_value = "fixed-window")]
    algorithm: Algorithm,

    /// Where to write, instead of standard output
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// What was understood goes to standard error, so that the file can go to standard output.
pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let (arguments, Imported { told, file }) = match &arguments.from {
        From::Envoy(arguments) => (arguments, envoy::import(&arguments.path, arguments.algorithm)?),
        From::Limitador(arguments) => (arguments, limitador::import(&arguments.path, arguments.algorithm)?),
    };
    // What others allow and we do not is told here rather than by whoever serves the file.
    Config::parse(&file).map_err(|problems| {
        let name = format!("what is made of {}", arguments.path.display());
        Failure::Files(vec![Problems::new(&name, problems)])
    })?;
    eprint!("{told}");
    match &arguments.output {
        None => print(file)?,
        Some(output) => {
            let failed = |error| Failure::new(format!("{} cannot be written: {error}", output.display()));
            // Not over a file that somebody has written himself.
            let mut target = File::create_new(output).map_err(failed)?;
            target.write_all(file.as_bytes()).map_err(failed)?;
            eprintln!("written: {}", output.display());
        }
    }
    Ok(ExitCode::SUCCESS)
}
