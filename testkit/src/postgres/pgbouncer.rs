//! PgBouncer in front of a PostgreSQL server.

use std::env;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::Signal;
use tempfile::TempDir;

use super::server::Postgres;
use super::session::{PgSession, Rows};
use super::user;
use crate::binary::on_path;
use crate::port;
use crate::process::{Launch, Process};
use crate::stopped::until_stopped;
use crate::wait::until;

/// Attempts to find a port before another process binds it.
const PORT_ATTEMPTS: usize = 20;

const VARIABLE: &str = "SLIDEGATE_PGBOUNCER";

/// First version with support for prepared statements.
const PREPARES_SINCE: (u32, u32) = (1, 21);

/// Configuration of a PgBouncer that is not started yet.
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct PgBouncerBuilder {
    settings: Vec<(String, String)>,
    max_prepared_statements: u32,
}

impl PgBouncerBuilder {
    /// Adds a line to its configuration: `("pool_mode", "session")`.
    pub fn setting(mut self, name: &str, value: &str) -> Self {
        self.settings.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Number of prepared statements that it tracks per connection; the default is 0. Debian 12's version does not
    /// support them.
    pub fn max_prepared_statements(mut self, count: u32) -> Self {
        self.max_prepared_statements = count;
        self
    }

    /// Starts PgBouncer and waits until it listens.
    pub fn in_front_of(self, postgres: &Postgres) -> PgBouncer {
        let mut log = String::new();
        for _ in 0..PORT_ATTEMPTS {
            let bouncer = self.spawn(postgres.port());
            match bouncer.wait_ready() {
                Ok(()) => return bouncer,
                Err(_) if bouncer.lost_race() => log = bouncer.log(),
                Err(seen) => panic!("PgBouncer does not start: {seen}"),
            }
        }
        panic!("PgBouncer found no port in {PORT_ATTEMPTS} attempts:\n{log}");
    }

    fn spawn(&self, upstream: u16) -> PgBouncer {
        let program = binary();
        let folder = tempfile::Builder::new().prefix("slidegate-").tempdir().expect("a folder can be made");
        user::give(folder.path());
        let port = port::free();
        let text = self.configuration(&program, folder.path(), port, upstream);
        let write = |name: &str, text: &str| {
            fs::write(folder.path().join(name), text).expect("the folder is writable");
        };
        write("pgbouncer.ini", &text);
        write("users.txt", "\"postgres\" \"\"\n");

        let (program, mut args) = user::wrapped(&program);
        args.push(OsString::from("pgbouncer.ini"));
        let launch = Launch { program, args, environment: Vec::new(), folder: folder.path().to_owned() };
        PgBouncer { process: Process::start(launch), port, _folder: folder }
    }

    fn configuration(&self, program: &Path, folder: &Path, port: u16, upstream: u16) -> String {
        let users = folder.join("users.txt");
        let mut text = format!(
            "[databases]\n* = host=127.0.0.1 port={upstream}\n[pgbouncer]\n\
             listen_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n\
             auth_type = trust\nauth_file = {}\nadmin_users = postgres\n\
             pool_mode = transaction\nignore_startup_parameters = extra_float_digits\n",
            users.display()
        );
        let mut set = |name: &str, value: &str| {
            writeln!(text, "{name} = {value}").expect("a string takes all");
        };
        // Without this, PgBouncer waits 15 seconds after a failed connection to the server.
        set("server_login_retry", "0");
        let version = version(program);
        if version >= PREPARES_SINCE {
            set("max_prepared_statements", &self.max_prepared_statements.to_string());
        } else {
            assert_eq!(
                self.max_prepared_statements, 0,
                "PgBouncer {version:?} cannot track prepared statements: name a newer one in {VARIABLE}"
            );
        }
        for (name, value) in &self.settings {
            set(name, value);
        }
        text
    }
}

/// PgBouncer on a free port of 127.0.0.1. It assigns server connections per transaction and is killed on drop.
///
/// Only the superuser `postgres` can connect, without a password.
#[derive(Debug)]
pub struct PgBouncer {
    process: Process,
    port: u16,
    _folder: TempDir,
}

impl PgBouncer {
    /// Starts a PgBouncer with the default configuration.
    pub fn in_front_of(postgres: &Postgres) -> Self {
        Self::builder().in_front_of(postgres)
    }

    /// Returns a builder for a PgBouncer.
    pub fn builder() -> PgBouncerBuilder {
        PgBouncerBuilder::default()
    }

    /// Address: 127.0.0.1 and the port.
    pub fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    /// URL: `postgres://postgres@127.0.0.1:PORT/postgres`.
    pub fn url(&self) -> String {
        format!("postgres://postgres@{}/postgres", self.address())
    }

    /// Process ID.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Log since the last start.
    pub fn log(&self) -> String {
        self.process.log()
    }

    /// Stops the process with SIGSTOP: connections stay open without responses.
    pub fn stop_signal(&self) {
        self.process.signal(Signal::STOP);
        until_stopped(self.process.pid());
    }

    /// Continues the process with SIGCONT.
    pub fn continue_signal(&self) {
        self.process.signal(Signal::CONT);
    }

    /// Kills the process with SIGKILL and waits until it has ended.
    pub fn kill(&self) {
        self.process.kill();
    }

    /// Kills PgBouncer if it is alive and starts it again on the same port. Waits until it listens.
    pub fn restart(&self) {
        until("its port is free again", || {
            self.process.restart();
            match self.wait_ready() {
                Err(seen) if !self.lost_race() => panic!("PgBouncer does not restart: {seen}"),
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
        let rows = self.connect().and_then(|mut session| session.sql(text));
        rows.unwrap_or_else(|error| panic!("{}: {error}; query: {text}", self.address()))
    }

    fn wait_ready(&self) -> Result<(), String> {
        until("PgBouncer listens", || {
            if !self.process.is_alive() {
                return Ok(Err(format!("the process has ended\n{}", self.process.log_tail())));
            }
            if self.log().contains("process up:") {
                return Ok(Ok(()));
            }
            Err(format!("the process is not ready\n{}", self.process.log_tail()))
        })
    }

    fn lost_race(&self) -> bool {
        self.log().contains("Address already in use")
    }
}

fn binary() -> PathBuf {
    // Debian installs to a folder that is not on every user's `PATH`.
    let debian = || Some(PathBuf::from("/usr/sbin/pgbouncer")).filter(|binary| binary.is_file());
    env::var_os(VARIABLE)
        .map(PathBuf::from)
        .or_else(|| on_path("pgbouncer"))
        .or_else(debian)
        .unwrap_or_else(|| panic!("there is no pgbouncer: run `make deps`, or name the binary in {VARIABLE}"))
}

/// Parses the first line of the output, such as `PgBouncer 1.18.0`.
fn version(program: &Path) -> (u32, u32) {
    let output = Command::new(program).arg("--version").output().expect("the binary runs");
    let text = String::from_utf8_lossy(&output.stdout);
    let mut numbers = text.split_whitespace().nth(1).into_iter().flat_map(|version| version.split('.'));
    let mut number = || numbers.next()?.parse().ok();
    number().zip(number()).unwrap_or_else(|| panic!("no version in {output:?}"))
}
