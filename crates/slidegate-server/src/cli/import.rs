//! `slidegate import`: converts limits of other services.

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Subcommand;
use slidegate::Algorithm;
use slidegate_config::import::{self, Imported, ImportedFile, ImportedOutput};

use super::{Failure, print};

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
    to: TargetFormat,

    #[command(flatten)]
    common: SourceArguments,
}

/// Format to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum TargetFormat {
    /// Configuration file, with one policy for each limit
    Policies,
    /// Files of envoyproxy/ratelimit, one for each namespace, for a proxy that keeps its configuration
    Envoy,
}

/// Prints the list of limits to standard error, so that standard output has the file only.
pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let (arguments, imported) = match &arguments.source {
        ImportSource::Envoy(arguments) => (arguments, import_envoy(arguments)?),
        ImportSource::Limitador(arguments) => (&arguments.common, import_limitador(arguments)?),
    };
    let output = arguments.output.as_deref();
    if let (None, ImportedOutput::Folder(files)) = (output, &imported.output)
        && files.len() > 1
    {
        return Err(Failure::new(format!(
            "{} files to write, one for each namespace; name a folder with --output",
            files.len()
        )));
    }
    eprint!("{}", imported.summary);
    if let Some(problems) = &imported.left_out {
        eprintln!("left out:\n{problems}");
    }
    match &imported.output {
        ImportedOutput::Config(text) => write_or_print(output, text)?,
        ImportedOutput::Folder(files) => write_folder(output, files)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn import_envoy(arguments: &SourceArguments) -> Result<Imported, Failure> {
    let algorithm = arguments.algorithm.unwrap_or(Algorithm::FixedWindow);
    import::envoy::to_policies(&arguments.path, algorithm).map_err(Failure::Files)
}

fn import_limitador(arguments: &LimitadorArguments) -> Result<Imported, Failure> {
    let SourceArguments { path, algorithm, .. } = &arguments.common;
    let imported = match (arguments.to, algorithm) {
        (TargetFormat::Policies, algorithm) => {
            import::limitador::to_policies(path, algorithm.unwrap_or(Algorithm::FixedWindow))
        }
        (TargetFormat::Envoy, None) => import::limitador::to_envoy(path),
        (TargetFormat::Envoy, Some(_)) => {
            return Err(Failure::new(
                "--algorithm needs --to policies, because files of envoyproxy/ratelimit have no algorithm; choose it \
                 with `slidegate serve --envoy-algorithm`",
            ));
        }
    };
    imported.map_err(Failure::Files)
}

fn write_folder(folder: Option<&Path>, files: &[ImportedFile]) -> Result<(), Failure> {
    if let Some(folder) = folder {
        std::fs::create_dir_all(folder).map_err(|error| write_error(folder, &error))?;
    }
    files.iter().try_for_each(|file| {
        write_or_print(folder.map(|folder| folder.join(&file.name)).as_deref(), &file.text)
    })
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
