//! One PostgreSQL.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use super::builder::PostgresBuilder;
use super::family;
use super::folder::Folder;
use super::session::{PgSession, Rows};
use crate::process::Process;
use crate::tls::Authority;
use crate::wait::until;

/// A PostgreSQL on a free port of 127.0.0.1 with a folder of its own. Ends when this value does.
///
/// The superuser is `postgres`, for whom no password is asked; all others are asked for theirs.
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
    /// Starts one as it comes.
    pub fn start() -> Self {
        Self::builder().start()
    }

    /// Starts one that is made to measure.
    pub fn builder() -> PostgresBuilder {
        PostgresBuilder::default()
    }

    /// Its port on 127.0.0.1, the same after a [`restart`](Self::restart).
    pub fn port(&self) -> u16 {
        self.port
    }

    /// 127.0.0.1 and its port.
    pub fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    /// `postgres://postgres@127.0.0.1:PORT/postgres`.
    pub fn url(&self) -> String {
        format!("postgres://postgres@{}/postgres", self.address())
    }

    /// The same for another user. Neither part is encoded: use letters and digits.
    pub fn url_as(&self, user: &str, password: &str) -> String {
        format!("postgres://{user}:{password}@{}/postgres", self.address())
    }

    /// Whom its TLS clients have to trust. Panics unless it was built with [`PostgresBuilder::tls`].
    #[track_caller]
    pub fn tls(&self) -> &Authority {
        self.authority.as_ref().expect("this server was built without tls()")
    }

    /// Where its Unix socket is: what libpq takes for a host.
    pub fn socket_folder(&self) -> &Path {
        self.folder.path()
    }

    /// Its own folder.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The number of its postmaster, another one after a [`restart`](Self::restart).
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// What it has logged since it was started.
    pub fn log(&self) -> String {
        self.process.log()
    }

    /// Stops all its processes where they are, with SIGSTOP: connections stay open, and nothing answers.
    pub fn stop_signal(&self) {
        family::stop(&self.process, &self.folder.data());
    }

    /// Lets them go on, with SIGCONT.
    pub fn continue_signal(&self) {
        family::go_on(&self.process, &self.folder.data());
    }

    /// Kills all its processes, with SIGKILL, and waits until they are gone: a crash.
    pub fn kill(&self) {
        family::kill(&self.process, &self.folder.data());
    }

    /// Whether the postmaster exists.
    pub fn is_alive(&self) -> bool {
        self.process.is_alive()
    }

    /// Kills it if need be and starts it anew, on the same port with the same data; waits until it has recovered and
    /// answers.
    pub fn restart(&self) {
        until("its port is free again", || {
            self.kill();
            self.remove_locks();
            self.process.restart();
            match self.wait_ready() {
                Err(seen) if !self.lost_race() => panic!("PostgreSQL does not start again: {seen}"),
                outcome => outcome,
            }
        });
    }

    /// A connection as the superuser.
    pub fn connect(&self) -> Result<PgSession, String> {
        PgSession::open(self.address())
    }

    /// Executes SQL on a connection of its own and gives the rows. Panics if it fails.
    #[track_caller]
    pub fn sql(&self, text: &str) -> Rows {
        self.try_sql(text).unwrap_or_else(|error| panic!("{error}, asked {}: {text}", self.address()))
    }

    /// Executes SQL on a connection of its own, see [`PgSession::sql`]. The server may be dead.
    pub fn try_sql(&self, text: &str) -> Result<Rows, String> {
        self.connect()?.sql(text)
    }

    /// Waits until it answers, or says how it ended.
    pub(crate) fn wait_ready(&self) -> Result<(), String> {
        until("PostgreSQL answers", || {
            if !self.process.is_alive() {
                return Ok(Err(format!("it has ended\n{}", self.process.log_tail())));
            }
            // An answer would prove less: whoever took the port first may have given it.
            let status = fs::read_to_string(self.pid_file()).unwrap_or_default();
            let lines: Vec<&str> = status.lines().map(str::trim).collect();
            let is_own = lines.first().is_some_and(|pid| *pid == self.pid().to_string());
            if is_own && lines.get(7).is_some_and(|status| ["ready", "standby"].contains(status)) {
                return Ok(Ok(()));
            }
            Err(format!("it is not ready\n{}", self.process.log_tail()))
        })
    }

    pub(crate) fn lost_race(&self) -> bool {
        self.process.log().contains("Address already in use")
    }

    fn pid_file(&self) -> PathBuf {
        self.folder.data().join("postmaster.pid")
    }

    /// Left by a crash. The number in them may by now be that of another test's server, which PostgreSQL would take for
    /// its own predecessor.
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
