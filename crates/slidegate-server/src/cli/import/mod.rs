//! `slidegate import`: limits of others in our own format.

mod envoy;
mod limitador;
mod write;

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Subcommand;
use slidegate::Algorithm;

use self::write::Written;
use super::{Failure, print};
use slidegate_config::{Config, Problems};

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
    /// From a limits file of Limitador. What cannot be carried over is left out, and listed
    Limitador(LimitadorArguments),
}

#[derive(Debug, clap::Args)]
struct FromArguments {
    /// The folder or the file
    #[arg(value_name = "PATH")]
    path: PathBuf,

    /// How limits are to be counted [default: fixed-window]
    #[arg(long, value_name = "NAME")]
    algorithm: Option<Algorithm>,

    /// Where to write, instead of standard output
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
struct LimitadorArguments {
    /// What to write. Files for Envoy go to standard output if there is one, and else to the folder of --output
    #[arg(long, value_name = "FORMAT", default_value = "policies")]
    to: limitador::To,

    #[command(flatten)]
    common: FromArguments,
}

/// What was understood goes to standard error, so that the file can go to standard output.
pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let (arguments, imported) = match &arguments.from {
        From::Envoy(arguments) => (arguments, envoy::import(&arguments.path, arguments.algorithm)?),
        From::Limitador(LimitadorArguments { to, common }) => {
            (common, limitador::import(&common.path, *to, common.algorithm)?)
        }
    };
    let output = arguments.output.as_deref();
    match imported.files.as_slice() {
        [Written { name: None, text }] => {
            // A limit that others allow and this service refuses is found here rather than when the file is served.
            Config::parse(text).map_err(|problems| {
                let name = format!("what is made of {}", arguments.path.display());
                Failure::Files(vec![Problems::new(&name, problems)])
            })?;
            eprint!("{}", imported.told);
            write_or_print(output, text)
        }
        files => {
            if output.is_none() && files.len() > 1 {
                return Err(Failure::new(format!(
                    "{} files are to be written, one for each namespace; name a folder with --output",
                    files.len()
                )));
            }
            eprint!("{}", imported.told);
            if let Some(folder) = output {
                std::fs::create_dir_all(folder).map_err(|error| cannot_be_written(folder, &error))?;
            }
            for Written { name, text } in files {
                let file = output.zip(name.as_ref()).map(|(folder, name)| folder.join(name));
                write_or_print(file.as_deref(), text)?;
            }
            Ok(())
        }
    }?;
    Ok(ExitCode::SUCCESS)
}

fn write_or_print(output: Option<&Path>, text: &str) -> Result<(), Failure> {
    let Some(output) = output else { return print(text) };
    // Never over a file that is there.
    let mut target = File::create_new(output).map_err(|error| cannot_be_written(output, &error))?;
    target.write_all(text.as_bytes()).map_err(|error| cannot_be_written(output, &error))?;
    eprintln!("written: {}", output.display());
    Ok(())
}

fn cannot_be_written(path: &Path, error: &std::io::Error) -> Failure {
    Failure::new(format!("{} cannot be written: {error}", path.display()))
}
