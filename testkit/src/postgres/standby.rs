//! Standby of a PostgreSQL server.

use std::ops::Deref;

use super::builder::PostgresBuilder;
use super::server::Postgres;
use super::{binary, user};
use crate::wait::until;

/// Hot standby. Dereferences to its [`Postgres`].
///
/// It starts from a base backup with the primary's settings and streams asynchronously. For synchronous replication,
/// set its `cluster_name` and add that name to the primary's `synchronous_standby_names`.
#[derive(Debug)]
pub struct Standby {
    server: Postgres,
}

impl Standby {
    /// Starts a standby and waits until it is in sync.
    pub fn of(primary: &Postgres) -> Self {
        Self::build(Postgres::builder(), primary)
    }

    /// Starts a standby from a builder.
    pub fn build(builder: PostgresBuilder, primary: &Postgres) -> Self {
        let from = format!("host=127.0.0.1 port={} user=postgres", primary.port());
        let server = builder.start_with(|folder| {
            let data = folder.data();
            let data = data.to_str().expect("a temporary folder has a name that is text");
            let args = ["-D", data, "-d", &from, "--write-recovery-conf", "--checkpoint=fast", "--no-sync"];
            user::run(&binary::binary("pg_basebackup"), &args);
        });
        let standby = Self { server };
        standby.wait_in_sync(primary);
        standby
    }

    /// Waits until the standby has everything that the primary had at the time of the call.
    #[track_caller]
    pub fn wait_in_sync(&self, primary: &Postgres) {
        let wanted = written(primary).expect("the primary responds");
        until("the standby is in sync", || {
            let rows = self.server.try_sql(&format!(
                "SELECT pg_last_wal_replay_lsn() >= '{wanted}', pg_last_wal_replay_lsn()"
            ))?;
            if rows[0][0].as_deref() == Some("t") { Ok(()) } else { Err(format!("{rows:?} of {wanted}")) }
        });
    }

    /// Makes the standby a primary and waits until it is one.
    #[track_caller]
    pub fn promote(&self) {
        assert_eq!(
            self.server.sql("SELECT pg_promote()"),
            [[Some("t".to_owned())]],
            "the standby is promoted"
        );
    }
}

/// Returns the end of the primary's WAL, asynchronous commits included: the local commit here flushes them and does not
/// wait for a standby.
fn written(primary: &Postgres) -> Result<String, String> {
    let mut session = primary.connect()?;
    session.sql("SET synchronous_commit = local")?;
    session.sql("SELECT pg_logical_emit_message(true, 'slidegate', '')")?;
    let rows = session.sql("SELECT pg_current_wal_lsn()")?;
    rows[0][0].clone().ok_or_else(|| "no position".to_owned())
}

impl Deref for Standby {
    type Target = Postgres;

    fn deref(&self) -> &Postgres {
        &self.server
    }
}
