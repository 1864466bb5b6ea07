//! The commands, one file each.

mod block;
mod certificate;
mod clean;
mod client;
mod completions;
mod decide;
mod envoy;
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

use slidegate::PostgresStoreBuilder;

use crate::environment;
use slidegate_config::{Problems, StoreUrl};

/// Rate limits for any application: as a service, or at the command line.
#[derive(Debug, Parser)]
#[command(name = "slidegate", version)]
pub struct Command {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    Serve(serve::Arguments),
    /// Ask once whether a key may proceed: exit code 0 if allowed, 1 if denied, 2 on errors
    Check(decide::Arguments),
    /// Say what a check would say, and spend nothing
    #[command(mut_arg("cost", |cost| cost.help("How much it would cost")))]
    Peek(decide::Arguments),
    /// Count what has happened, beyond the limit too: exit code 0 if no limit is exceeded then, 1 if one is, 2 on errors
    #[command(mut_arg("cost", |cost| cost.help("How much has been used")))]
    Charge(decide::Arguments),
    /// Give back what was spent, and never more than is counted
    #[command(mut_arg("cost", |cost| cost.help("How much to give back")))]
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
    /// What the command line and the environment say. Whatever is wrong ends the process.
    pub fn from_arguments() -> Self {
        // For clap, a variable that is empty says something.
        let without_empty =
            |arg: Arg| if arg.get_env().is_some_and(environment::is_empty) { arg.env(None) } else { arg };
        let command =
            <Self as CommandFactory>::command().mut_subcommands(|verb| verb.mut_args(without_empty));
        let matches = command.try_get_matches().unwrap_or_else(|error| helpful(error).exit());
        Self::from_arg_matches(&matches).unwrap_or_else(|error| error.exit())
    }
}

/// What is looked for under another name, clap would take for one that is only spelled alike.
fn helpful(mut error: clap::Error) -> clap::Error {
    if error.get(ContextKind::InvalidSubcommand) == Some(&ContextValue::String("explain".to_owned())) {
        let meant = ContextValue::Strings(vec!["validate FILE --explain REQUEST".to_owned()]);
        error.insert(ContextKind::SuggestedSubcommand, meant);
    }
    if let Some(variable) = variable_to_blame(&error) {
        let tip = StyledStr::from(format!("the environment says so, by {variable}"));
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip]));
    }
    error
}

/// The variable that has a wrong value, if it was not an argument that had it.
fn variable_to_blame(error: &clap::Error) -> Option<String> {
    let Some(ContextValue::String(blamed)) = error.get(ContextKind::InvalidArg) else { return None };
    let Some(ContextValue::String(value)) = error.get(ContextKind::InvalidValue) else { return None };
    let flag = blamed.split(' ').next()?;
    let command = Command::command();
    let mut args = command.get_subcommands().flat_map(clap::Command::get_arguments);
    let arg = args.find(|arg| arg.get_long() == flag.strip_prefix("--") && arg.get_env().is_some())?;
    let variable = arg.get_env()?;
    let is_said = environment::said(variable).is_some_and(|said| said == value.as_str());
    (is_said && !is_given(flag)).then(|| variable.to_string_lossy().into_owned())
}

/// Whether a flag is among the arguments.
fn is_given(flag: &str) -> bool {
    std::env::args_os().any(|word| word.to_string_lossy().split('=').next() == Some(flag))
}

/// Runs a command. A denied check is not a failure, but has an exit code of its own.
pub fn run(command: Command) -> Result<ExitCode, Failure> {
    match command.verb {
        Verb::Serve(arguments) => serve::run(arguments),
        Verb::Check(arguments) => decide::run(slidegate::Verb::Check, &arguments),
        Verb::Peek(arguments) => decide::run(slidegate::Verb::Peek, &arguments),
        Verb::Charge(arguments) => decide::run(slidegate::Verb::Charge, &arguments),
        Verb::Refund(arguments) => decide::run(slidegate::Verb::Refund, &arguments),
        Verb::Reset(arguments) => reset::run(&arguments),
        Verb::Block(arguments) => block::run(&arguments),
        Verb::Validate(arguments) => validate::run(&arguments),
        Verb::Schema(arguments) => schema::run(&arguments),
        Verb::Top(arguments) => top::run(&arguments),
        Verb::Import(arguments) => import::run(&arguments),
        Verb::Migrate(arguments) => migrate::run(&arguments),
        Verb::Clean(arguments) => clean::run(&arguments),
        Verb::Completions(arguments) => completions::run(&arguments),
        Verb::Man(arguments) => man::run(&arguments),
    }
}

/// Prints what was asked for. Whoever reads only the beginning, as `head` does, has what they wanted.
fn print(text: impl AsRef<[u8]>) -> Result<(), Failure> {
    let mut out = io::stdout();
    match out.write_all(text.as_ref()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(Failure::new(error.to_string())),
        _ => Ok(()),
    }
}

fn parse_store(url: &str) -> Result<StoreUrl, Failure> {
    url.parse().map_err(|message| {
        let place = if is_given("--store") { "--store" } else { "SLIDEGATE_STORE" };
        Failure::new(format!("{place}: {message}"))
    })
}

/// For commands that make no sense elsewhere.
fn parse_postgres(url: &str) -> Result<PostgresStoreBuilder, Failure> {
    match parse_store(url)? {
        StoreUrl::Postgres(postgres) => Ok(postgres.builder()),
        other => Err(Failure::new(format!(
            "--store: {other} needs none of this; write postgres://HOST:PORT/DATABASE"
        ))),
    }
}

/// Why a command did not do what it was told.
#[derive(Debug)]
pub enum Failure {
    /// Files with problems.
    Files(Vec<Problems>),
    /// Anything else.
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
