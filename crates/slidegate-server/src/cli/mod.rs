//! Command line of `slidegate`, with one file per command.

mod block;
mod certificate;
mod clean;
mod client;
mod completions;
mod decide;
mod envoy;
mod explain;
mod import;
mod listeners;
mod man;
mod migrate;
mod peek_report;
mod reset;
mod schema;
mod serve;
mod sockets;
mod top;
mod validate;

use std::fmt;
use std::io::{self, ErrorKind, Write as _};
use std::process::ExitCode;

use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue};
use clap::{Arg, CommandFactory, FromArgMatches, Parser, Subcommand};
use slidegate::store::PostgresStoreBuilder;
use slidegate_config::{Problems, StoreUrl};

use crate::environment;

/// Rate limits for any application, as a service or on the command line.
#[derive(Debug, Parser)]
#[command(name = "slidegate", version)]
pub struct Command {
    #[command(subcommand)]
    subcommand: Subcommands,
}

#[derive(Debug, Subcommand)]
enum Subcommands {
    Serve(serve::Arguments),
    /// Spend the cost of a request if every quota allows it: exit code 0 if allowed, 1 if denied, 2 on errors
    Check(decide::Arguments),
    /// Print the decision of a check without spending anything
    #[command(mut_arg("cost", |cost| cost.help("Cost of the check")))]
    Peek(decide::Arguments),
    /// Count a cost that has already happened, beyond the limit too: exit code 0 if no limit is exceeded afterwards, 1 if
    /// one is, 2 on errors
    #[command(mut_arg("cost", |cost| cost.help("Cost that has happened")))]
    Charge(decide::Arguments),
    /// Refund a cost, but no more than is counted
    #[command(mut_arg("cost", |cost| cost.help("Cost to refund")))]
    Refund(decide::Arguments),
    #[command(mut_arg("cost", |cost| cost.hide(true)))]
    #[command(mut_arg("key", |key| key.required(false).required_unless_present("all")))]
    Reset(reset::Arguments),
    #[command(mut_arg("cost", |cost| cost.hide(true)))]
    Block(block::Arguments),
    Validate(validate::Arguments),
    Schema(schema::Arguments),
    Top(top::Arguments),
    Import(import::Arguments),
    Migrate(migrate::Arguments),
    Clean(clean::Arguments),
    Completions(completions::Arguments),
    Man(man::Arguments),
}

impl Command {
    /// Parses the command line and the environment. Exits the process on `--help`, `--version` and errors.
    pub fn from_arguments() -> Self {
        // clap would take the value of an empty variable.
        let without_empty =
            |arg: Arg| if arg.get_env().is_some_and(environment::is_empty) { arg.env(None) } else { arg };
        let command =
            <Self as CommandFactory>::command().mut_subcommands(|verb| verb.mut_args(without_empty));
        let matches = command.try_get_matches().unwrap_or_else(|error| with_hints(error).exit());
        Self::from_arg_matches(&matches).unwrap_or_else(|error| error.exit())
    }
}

/// Adds hints to an error: the command that explains a decision, and the environment variable with the invalid value.
fn with_hints(mut error: clap::Error) -> clap::Error {
    if error.get(ContextKind::InvalidSubcommand) == Some(&ContextValue::String("explain".to_owned())) {
        // In place of clap's suggestion, a command with a similar name.
        let suggestion = ContextValue::Strings(vec!["validate FILE --explain REQUEST".to_owned()]);
        error.insert(ContextKind::SuggestedSubcommand, suggestion);
    }
    if let Some(variable) = invalid_variable(&error) {
        let tip = StyledStr::from(format!("the value is from the environment variable {variable}"));
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip]));
    }
    error
}

/// Returns the environment variable with the invalid value, or `None` if the value is from an argument.
fn invalid_variable(error: &clap::Error) -> Option<String> {
    let Some(ContextValue::String(argument)) = error.get(ContextKind::InvalidArg) else { return None };
    let Some(ContextValue::String(value)) = error.get(ContextKind::InvalidValue) else { return None };
    let flag = argument.split(' ').next()?;
    let command = Command::command();
    let mut args = command.get_subcommands().flat_map(clap::Command::get_arguments);
    let arg = args.find(|arg| arg.get_long() == flag.strip_prefix("--") && arg.get_env().is_some())?;
    let variable = arg.get_env()?;
    let is_from_variable = environment::variable(variable).is_some_and(|text| text == value.as_str());
    (is_from_variable && !is_flag_given(flag)).then(|| variable.to_string_lossy().into_owned())
}

/// Returns whether a flag is among the arguments.
fn is_flag_given(flag: &str) -> bool {
    std::env::args_os().any(|word| word.to_string_lossy().split('=').next() == Some(flag))
}

/// Runs a command. A denied check is not a failure, but exits with 1.
pub fn run(command: Command) -> Result<ExitCode, Failure> {
    match command.subcommand {
        Subcommands::Serve(arguments) => serve::run(arguments),
        Subcommands::Check(arguments) => decide::run(slidegate::Verb::Check, &arguments),
        Subcommands::Peek(arguments) => decide::run(slidegate::Verb::Peek, &arguments),
        Subcommands::Charge(arguments) => decide::run(slidegate::Verb::Charge, &arguments),
        Subcommands::Refund(arguments) => decide::run(slidegate::Verb::Refund, &arguments),
        Subcommands::Reset(arguments) => reset::run(&arguments),
        Subcommands::Block(arguments) => block::run(&arguments),
        Subcommands::Validate(arguments) => validate::run(&arguments),
        Subcommands::Schema(arguments) => schema::run(&arguments),
        Subcommands::Top(arguments) => top::run(&arguments),
        Subcommands::Import(arguments) => import::run(&arguments),
        Subcommands::Migrate(arguments) => migrate::run(&arguments),
        Subcommands::Clean(arguments) => clean::run(&arguments),
        Subcommands::Completions(arguments) => completions::run(&arguments),
        Subcommands::Man(arguments) => man::run(&arguments),
    }
}

/// Writes to standard output. A closed pipe is no error, because `head` closes it early.
fn print(text: impl AsRef<[u8]>) -> Result<(), Failure> {
    let mut out = io::stdout();
    match out.write_all(text.as_ref()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(Failure::new(error.to_string())),
        _ => Ok(()),
    }
}

fn parse_store(url: &str) -> Result<StoreUrl, Failure> {
    url.parse().map_err(|message| {
        let source = if is_flag_given("--store") { "--store" } else { "SLIDEGATE_STORE" };
        Failure::new(format!("{source}: {message}"))
    })
}

/// Parses a store URL for a command that works on PostgreSQL only.
fn parse_postgres(url: &str) -> Result<PostgresStoreBuilder, Failure> {
    match parse_store(url)? {
        StoreUrl::Postgres(postgres) => Ok(postgres.builder()),
        other => Err(Failure::new(format!(
            "--store: {other} is not PostgreSQL; write postgres://HOST:PORT/DATABASE"
        ))),
    }
}

/// Error of a command.
#[derive(Debug)]
pub enum Failure {
    /// Problems of files.
    Files(Vec<Problems>),
    /// Another error.
    Message(String),
}

impl Failure {
    fn new(message: impl Into<String>) -> Self {
        Self::Message(message.into())
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Files(files) => {
                f.write_str(&files.iter().map(Problems::to_string).collect::<Vec<_>>().join("\n"))
            }
            Self::Message(message) => write!(f, "error: {message}"),
        }
    }
}

impl std::error::Error for Failure {}
