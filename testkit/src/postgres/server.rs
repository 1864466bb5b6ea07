//! PostgreSQL server.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use super::folder::Folder;
use super::processes;
use super::session::{PgSession, Rows};
use crate::process::Process;
use crate::tls::Authority;
use crate::wait::until;

/// PostgreSQL server on a free port of 127.0.0.1, with its own folder. It is killed on drop.
///
/// The superuser is `postgres` and needs no password. All other users need theirs.
///
/// ```
/// use slidegate_testkit::Postgres;
///
/// let postgres = Postgres::start();
/// assert_eq!(postgres.sql("SELECT 1, NULL"), [[Some("1".to_owned()), None]]);
/// postgres.kill();
/// assert!(postgres.try_sql("SELECT 1").is_err());
/// postgres.restart();
/// ```
#[derive(Debug)]
pub struct Postgres {
    pub(crate) process: Process,
    pub(crate) port: u16,
    pub(crate) authority: Option<Authority>,
    pub(crate) folder: Folder,
}

impl Postgres {
    /// Port on 127.0.0.1. It stays the same after a [`restart`](Self::restart).
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Address: 127.0.0.1 and the port.
    pub fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    /// URL: `postgres://postgres@127.0.0.1:PORT/postgres`.
    pub fn url(&self) -> String {
        format!("postgres://postgres@{}/postgres", self.address())
    }

    /// URL for another user. Neither part is encoded: use letters and digits.
    pub fn url_as(&self, user: &str, password: &str) -> String {
        format!("postgres://{user}:{password}@{}/postgres", self.address())
    }

    /// Authority that TLS clients have to trust. Panics unless the server was built with
    /// [`PostgresBuilder::tls`](super::PostgresBuilder::tls).
    #[track_caller]
    pub fn tls(&self) -> &Authority {
        self.authority.as_ref().expect("this server was built without tls()")
    }

    /// Folder of the Unix socket, which libpq takes as a host.
    pub fn socket_folder(&self) -> &Path {
        self.folder.path()
    }

    /// Working folder of the server.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Process ID of the postmaster. It changes with a [`restart`](Self::restart).
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Log since the last start.
    pub fn log(&self) -> String {
        self.process.log()
    }

    /// Stops all processes with SIGSTOP: connections stay open without responses.
    pub fn stop_signal(&self) {
        processes::stop(&self.process, &self.folder.data());
    }

    /// Continues all processes with SIGCONT.
    pub fn continue_signal(&self) {
        processes::resume(&self.process, &self.folder.data());
    }

    /// Kills all processes with SIGKILL, like a crash, and waits until they have ended.
    pub fn kill(&self) {
        processes::kill(&self.process, &self.folder.data());
    }

    /// Returns whether the postmaster is alive.
    pub fn is_alive(&self) -> bool {
        self.process.is_alive()
    }

    /// Kills the server if it is alive and starts it again on the same port with the same data. Waits until it has
    /// recovered and responds.
    pub fn restart(&self) {
        until("its port is free again", || {
            self.kill();
            self.remove_locks();
            self.process.restart();
            match self.wait_ready() {
                Err(seen) if !self.lost_race() => panic!("PostgreSQL does not restart: {seen}"),
                outcome => outcome,
            }
        });
    }

    /// Opens a connection as the superuser.
    pub fn connect(&self) -> Result<PgSession, String> {
        PgSession::open(self.address())
    }

    /// Executes SQL on a new connection and returns the rows. Panics if it fails.
    #[track_caller]
    pub fn sql(&self, text: &str) -> Rows {
        self.try_sql(text).unwrap_or_else(|error| panic!("{}: {error}; query: {text}", self.address()))
    }

    /// Executes SQL on a new connection, see [`PgSession::sql`]. The server may be dead.
    pub fn try_sql(&self, text: &str) -> Result<Rows, String> {
        self.connect()?.sql(text)
    }

    /// Waits until the server is ready. Returns the log if it ends instead.
    pub(crate) fn wait_ready(&self) -> Result<(), String> {
        until("PostgreSQL responds", || {
            if !self.process.is_alive() {
                return Ok(Err(format!("the process has ended\n{}", self.process.log_tail())));
            }
            // A response alone proves nothing: it may come from another process that took the port.
            let status = fs::read_to_string(self.pid_file()).unwrap_or_default();
            let lines: Vec<&str> = status.lines().map(str::trim).collect();
            let is_own = lines.first().is_some_and(|pid| *pid == self.pid().to_string());
            if is_own && lines.get(7).is_some_and(|status| ["ready", "standby"].contains(status)) {
                return Ok(Ok(()));
            }
            Err(format!("the process is not ready\n{}", self.process.log_tail()))
        })
    }

    pub(crate) fn lost_race(&self) -> bool {
        self.process.log().contains("Address already in use")
    }

    fn pid_file(&self) -> PathBuf {
        self.folder.data().join("postmaster.pid")
    }

    /// Removes lock files that a crash leaves behind. The process ID in them may by now belong to another test's
    /// server, which PostgreSQL would take for its own predecessor.
    fn remove_locks(&self) {
        let _ = fs::remove_file(self.pid_file());
        let _ = fs::remove_file(self.folder.path().join(format!(".s.PGSQL.{}.lock", self.port)));
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        self.kill();
    }
}
