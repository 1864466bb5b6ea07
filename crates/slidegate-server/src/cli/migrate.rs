//! `slidegate migrate`.

use std::process::ExitCode;

use super::{Failure, print};

/// Create the schema of the PostgreSQL store, or bring it up to date; may be repeated
#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    /// URL of the store, such as `postgres://owner@127.0.0.1:5432/app`
    #[arg(long, value_name = "URL", env = "SLIDEGATE_STORE", hide_env_values = true)]
    store: String,

    /// Print the SQL without connecting to the database
    #[arg(long)]
    print: bool,
}

#[tokio::main(flavor = "current_thread")]
pub(super) async fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let builder = super::parse_postgres(&arguments.store)?;
    if arguments.print {
        print(builder.migration())?;
    } else {
        builder.migrate().await.map_err(|error| Failure::new(error.to_string()))?;
        print("the schema is up to date\n")?;
    }
    Ok(ExitCode::SUCCESS)
}
