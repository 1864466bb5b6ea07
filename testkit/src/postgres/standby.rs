//! A PostgreSQL that follows another.

use std::ops::Deref;

use super::builder::PostgresBuilder;
use super::server::Postgres;
use super::{binary, user};
use crate::wait::until;

/// A hot standby; all that a [`Postgres`] can do, it can.
///
/// It is begun from a base backup, has the primary's settings, and streams without delay but asynchronously. One that
/// shall be waited for calls itself by `cluster_name`, which the primary's `synchronous_standby_names` names.
#[derive(Debug)]
pub struct Standby {
    server: Postgres,
}

impl Standby {
    /// Starts one, and waits until it has all the primary has.
    pub fn of(primary: &Postgres) -> Self {
        Self::build(Postgres::builder(), primary)
    }

    /// Starts one that is made to measure.
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

    /// Waits until it has all that the primary had when this was called.
    #[track_caller]
    pub fn wait_in_sync(&self, primary: &Postgres) {
        let wanted = written(primary).expect("the primary answers");
        until("the standby is in sync", || {
            let rows = self.server.try_sql(&format!(
                "SELECT pg_last_wal_replay_lsn() >= '{wanted}', pg_last_wal_replay_lsn()"
            ))?;
            if rows[0][0].as_deref() == Some("t") { Ok(()) } else { Err(format!("{rows:?} of {wanted}")) }
        });
    }

    /// Makes it a primary, and waits until it is one.
    #[track_caller]
    pub fn promote(&self) {
        assert_eq!(self.server.sql("SELECT pg_promote()"), [[Some("t".to_owned())]], "it is not promoted");
    }
}

/// Up to where the primary has written its log, commits included that nobody waited for: a commit of ours takes them
/// along, and does not itself wait for a standby.
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
