//! A pool of connections in front of a PostgreSQL.

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
use crate::still::until_still;
use crate::wait::until;

/// So often may somebody else be faster to take a port.
const RACES: usize = 20;

const VARIABLE: &str = "SLIDEGATE_PGBOUNCER";

/// Before this version it knew nothing of prepared statements.
const PREPARES_SINCE: (u32, u32) = (1, 21);

/// A PgBouncer to be.
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct PgBouncerBuilder {
    settings: Vec<(String, String)>,
    max_prepared_statements: u32,
}

impl PgBouncerBuilder {
    /// A line of its configuration: `("pool_mode", "session")`.
    pub fn setting(mut self, name: &str, value: &str) -> Self {
        self.settings.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Lets it follow so many prepared statements of a connection; none unless told. Debian 12's version cannot.
    pub fn max_prepared_statements(mut self, count: u32) -> Self {
        self.max_prepared_statements = count;
        self
    }

    /// Starts it and waits until it listens.
    pub fn in_front_of(self, postgres: &Postgres) -> PgBouncer {
        let mut log = String::new();
        for _ in 0..RACES {
            let bouncer = self.spawn(postgres.port());
            match bouncer.wait_ready() {
                Ok(()) => return bouncer,
                Err(_) if bouncer.lost_race() => log = bouncer.log(),
                Err(seen) => panic!("PgBouncer does not start: {seen}"),
            }
        }
        panic!("PgBouncer found no port in {RACES} attempts:\n{log}");
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
        // It would otherwise not try again for 15 seconds after it could not reach the server once.
        set("server_login_retry", "0");
        let version = version(program);
        if version >= PREPARES_SINCE {
            set("max_prepared_statements", &self.max_prepared_statements.to_string());
        } else {
            assert_eq!(
                self.max_prepared_statements, 0,
                "PgBouncer {version:?} cannot follow prepared statements: name a newer one in {VARIABLE}"
            );
        }
        for (name, value) in &self.settings {
            set(name, value);
        }
        text
    }
}

/// A PgBouncer on a free port of 127.0.0.1 that gives out connections for a transaction each. Ends when this value does.
///
/// Only the superuser `postgres` can come in, without a password.
#[derive(Debug)]
pub struct PgBouncer {
    process: Process,
    port: u16,
    _folder: TempDir,
}

impl PgBouncer {
    /// Starts one as it comes.
    pub fn in_front_of(postgres: &Postgres) -> Self {
        Self::builder().in_front_of(postgres)
    }

    /// Starts one that is made to measure.
    pub fn builder() -> PgBouncerBuilder {
        PgBouncerBuilder::default()
    }

    /// 127.0.0.1 and its port.
    pub fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    /// `postgres://postgres@127.0.0.1:PORT/postgres`.
    pub fn url(&self) -> String {
        format!("postgres://postgres@{}/postgres", self.address())
    }

    /// The number of its process.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// What it has logged since it was started.
    pub fn log(&self) -> String {
        self.process.log()
    }

    /// Stops it where it is, with SIGSTOP: connections stay open, and nothing answers any more.
    pub fn stop_signal(&self) {
        self.process.signal(Signal::STOP);
        until_still(self.process.pid());
    }

    /// Lets it go on, with SIGCONT.
    pub fn continue_signal(&self) {
        self.process.signal(Signal::CONT);
    }

    /// Kills it, with SIGKILL, and waits until it is gone.
    pub fn kill(&self) {
        self.process.kill();
    }

    /// Kills it if need be and starts it anew on the same port; waits until it listens.
    pub fn restart(&self) {
        until("its port is free again", || {
            self.process.restart();
            match self.wait_ready() {
                Err(seen) if !self.lost_race() => panic!("PgBouncer does not start again: {seen}"),
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
        let rows = self.connect().and_then(|mut session| session.sql(text));
        rows.unwrap_or_else(|error| panic!("{error}, asked {}: {text}", self.address()))
    }

    fn wait_ready(&self) -> Result<(), String> {
        until("PgBouncer listens", || {
            if !self.process.is_alive() {
                return Ok(Err(format!("it has ended\n{}", self.process.log_tail())));
            }
            if self.log().contains("process up:") {
                return Ok(Ok(()));
            }
            Err(format!("it is not ready\n{}", self.process.log_tail()))
        })
    }

    fn lost_race(&self) -> bool {
        self.log().contains("Address already in use")
    }
}

fn binary() -> PathBuf {
    // Debian's place is not on everybody's `PATH`.
    let debian = || Some(PathBuf::from("/usr/sbin/pgbouncer")).filter(|binary| binary.is_file());
    env::var_os(VARIABLE)
        .map(PathBuf::from)
        .or_else(|| on_path("pgbouncer"))
        .or_else(debian)
        .unwrap_or_else(|| panic!("there is no pgbouncer: run `make deps`, or name the binary in {VARIABLE}"))
}

/// From a first line such as `PgBouncer 1.18.0`.
fn version(program: &Path) -> (u32, u32) {
    let answer = Command::new(program).arg("--version").output().expect("it is a binary");
    let text = String::from_utf8_lossy(&answer.stdout);
    let mut numbers = text.split_whitespace().nth(1).into_iter().flat_map(|version| version.split('.'));
    let mut number = || numbers.next()?.parse().ok();
    number().zip(number()).unwrap_or_else(|| panic!("no version in {answer:?}"))
}
