//! `slidegate clean`.

use std::process::ExitCode;

use super::{Failure, print};

/// Remove what counts nothing any more from a PostgreSQL store, a few pages at a time
#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    /// The store, such as `postgres://127.0.0.1:5432/app?schema=retired`
    #[arg(long, value_name = "URL", env = "SLIDEGATE_STORE", hide_env_values = true)]
    store: String,
}

#[tokio::main(flavor = "current_thread")]
pub(super) async fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let builder = super::parse_postgres(&arguments.store)?;
    let gone = builder.clean().await.map_err(|error| Failure::new(error.to_string()))?;
    print(format!("{gone} keys were over and are gone\n")).map(|()| ExitCode::SUCCESS)
}
