//! `slidegate clean`.

use std::process::ExitCode;

use super::{Failure, print};

/// Remove the expired keys of a PostgreSQL store, a few pages at a time
#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    /// URL of the store, such as `postgres://127.0.0.1:5432/app?schema=retired`
    #[arg(long, value_name = "URL", env = "SLIDEGATE_STORE", hide_env_values = true)]
    store: String,
}

#[tokio::main(flavor = "current_thread")]
pub(super) async fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let builder = super::parse_postgres(&arguments.store)?;
    let removed = builder.clean().await.map_err(|error| Failure::new(error.to_string()))?;
    print(format!("removed {removed} expired keys\n")).map(|()| ExitCode::SUCCESS)
}
