//! `slidegate import`: converts limits of other services.

mod envoy;
mod limitador;
mod write;

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Subcommand;
use slidegate::Algorithm;

use self::write::ImportedFile;
use super::{Failure, print};
use slidegate_config::{Config, Problems};

/// Convert the limits of another service and list them
#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    #[command(subcommand)]
    source: ImportSource,
}

#[derive(Debug, Subcommand)]
enum ImportSource {
    /// Convert a folder of envoyproxy/ratelimit, or one of its files
    Envoy(SourceArguments),
    /// Convert a limits file of Limitador; limits that cannot be converted are left out and listed
    Limitador(LimitadorArguments),
}

#[derive(Debug, clap::Args)]
struct SourceArguments {
    /// Folder or file to convert
    #[arg(value_name = "PATH")]
    path: PathBuf,

    /// Algorithm of the limits [default: fixed-window]
    #[arg(long, value_name = "NAME")]
    algorithm: Option<Algorithm>,

    /// File to write instead of standard output
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
struct LimitadorArguments {
    /// Format to write. With `envoy`, --output names a folder, which is required for more than one file
    #[arg(long, value_name = "FORMAT", default_value = "policies")]
    to: limitador::TargetFormat,

    #[command(flatten)]
    common: SourceArguments,
}

/// Prints the list of limits to standard error, so that standard output has the file only.
pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let (arguments, imported) = match &arguments.source {
        ImportSource::Envoy(arguments) => (arguments, envoy::import(&arguments.path, arguments.algorithm)?),
        ImportSource::Limitador(LimitadorArguments { to, common }) => {
            (common, limitador::import(&common.path, *to, common.algorithm)?)
        }
    };
    let output = arguments.output.as_deref();
    match imported.files.as_slice() {
        [ImportedFile { name: None, text }] => {
            // Rejects limits of the other service that slidegate does not support.
            Config::parse(text).map_err(|problems| {
                let name = format!("conversion of {}", arguments.path.display());
                Failure::Files(vec![Problems::new(&name, problems)])
            })?;
            eprint!("{}", imported.summary);
            write_or_print(output, text)
        }
        files => {
            if output.is_none() && files.len() > 1 {
                return Err(Failure::new(format!(
                    "{} files to write, one for each namespace; name a folder with --output",
                    files.len()
                )));
            }
            eprint!("{}", imported.summary);
            if let Some(folder) = output {
                std::fs::create_dir_all(folder).map_err(|error| write_error(folder, &error))?;
            }
            for ImportedFile { name, text } in files {
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
    // Never overwrites an existing file.
    let mut target = File::create_new(output).map_err(|error| write_error(output, &error))?;
    target.write_all(text.as_bytes()).map_err(|error| write_error(output, &error))?;
    eprintln!("written: {}", output.display());
    Ok(())
}

fn write_error(path: &Path, error: &std::io::Error) -> Failure {
    Failure::new(format!("{} cannot be written: {error}", path.display()))
}
