//! Redis or Valkey server.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use rustix::process::Signal;
use tempfile::TempDir;

use crate::process::Process;
use crate::stopped::until_stopped;
use crate::wait::until;
use crate::{Connection, Flavour, Reply, Tls, faketime};

/// Redis or Valkey server on the loopback interface. It has its own folder and keeps nothing on disk.
///
/// It is killed on drop, and whenever the test process ends.
#[derive(Debug)]
pub struct Server {
    // The fields drop in this order: the process ends before its folder is removed.
    pub(crate) process: Process,
    pub(crate) flavour: Flavour,
    pub(crate) port: u16,
    /// Cluster bus port.
    pub(crate) bus_port: Option<u16>,
    pub(crate) tls: Option<Tls>,
    pub(crate) socket: Option<PathBuf>,
    pub(crate) password: Option<String>,
    pub(crate) is_shifted: bool,
    pub(crate) folder: TempDir,
}

impl Server {
    /// Flavour of the server.
    pub fn flavour(&self) -> Flavour {
        self.flavour
    }

    /// Port on 127.0.0.1. It stays the same after a [`restart`](Self::restart).
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Address: 127.0.0.1 and the port.
    pub fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    /// URL: `redis://127.0.0.1:PORT`.
    pub fn url(&self) -> String {
        format!("redis://{}", self.address())
    }

    /// TLS port and certificates. Panics unless the server was built with
    /// [`ServerBuilder::tls`](crate::ServerBuilder::tls).
    #[track_caller]
    pub fn tls(&self) -> &Tls {
        self.tls.as_ref().expect("this server was built without tls()")
    }

    /// Path of the Unix socket. Panics unless the server was built with
    /// [`ServerBuilder::unix_socket`](crate::ServerBuilder::unix_socket).
    #[track_caller]
    pub fn socket_path(&self) -> &Path {
        self.socket.as_deref().expect("this server was built without unix_socket()")
    }

    /// Working folder of the server.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Process ID. It changes with a [`restart`](Self::restart).
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

    /// Sets the wall clock to `offset` from the real one and waits until the server uses it. Panics unless the server
    /// was built with [`ServerBuilder::faketime`](crate::ServerBuilder::faketime).
    #[track_caller]
    pub fn set_faketime(&self, offset: &str) {
        assert!(self.is_shifted, "this server was built without faketime()");
        faketime::set_in(self.folder(), offset);
        // Valkey caches the time for a millisecond.
        until("its clock is set", || {
            let time = self.command(&["TIME"]).array();
            let own = time[0].int() * 1_000_000 + time[1].int();
            let wanted = faketime::now_in(self.folder());
            if own.abs_diff(wanted) < CLOCK_TOLERANCE_US {
                Ok(())
            } else {
                Err(format!("{own} is not {wanted}"))
            }
        });
    }

    /// Stops the wall clock at `time_us` microseconds since the Unix epoch, and waits until the server uses it. Panics
    /// unless the server was built with [`ServerBuilder::faketime`](crate::ServerBuilder::faketime).
    #[track_caller]
    pub fn set_time_us(&self, time_us: u64) {
        assert!(self.is_shifted, "this server was built without faketime()");
        // libfaketime computes with fractions in binary, so half a microsecond more rounds down to the wanted one.
        let text = format!("{}.{:06}5", time_us / 1_000_000, time_us % 1_000_000);
        faketime::set_in(self.folder(), &text);
        until("its clock is set", || {
            let time = self.command(&["TIME"]).array();
            let own = time[0].int() * 1_000_000 + time[1].int();
            if u64::try_from(own) == Ok(time_us) { Ok(()) } else { Err(format!("{own} is not {time_us}")) }
        });
    }

    /// Kills the process with SIGKILL and waits until it has ended.
    pub fn kill(&self) {
        self.process.kill();
    }

    /// Returns whether the process is alive.
    pub fn is_alive(&self) -> bool {
        self.process.is_alive()
    }

    /// Kills the server if it is alive and starts it again, empty, on the same port. Waits until it responds.
    pub fn restart(&self) {
        until("its port is free again", || {
            self.process.restart();
            match self.wait_ready() {
                Err(seen) if !self.lost_race() => panic!("{:?} does not restart: {seen}", self.flavour),
                outcome => outcome,
            }
        });
    }

    /// Opens a connection, authenticated if the server was built with `--requirepass`.
    pub fn connect(&self) -> io::Result<Connection> {
        let mut connection = Connection::open(self.address())?;
        if let Some(password) = &self.password {
            connection.command(&["AUTH", password])?;
        }
        Ok(connection)
    }

    /// Sends a command on a new connection. Panics without a reply; an error of the server is a [`Reply::Error`].
    #[track_caller]
    pub fn command<A: AsRef<[u8]>>(&self, args: &[A]) -> Reply {
        self.try_command(args).unwrap_or_else(|error| panic!("no response from {}: {error}", self.address()))
    }

    /// Number of `EVALSHA` calls that the server has executed.
    #[track_caller]
    pub fn scripts_run(&self) -> u64 {
        self.calls_of("evalsha")
    }

    /// Number of calls of a command that the server has executed.
    #[track_caller]
    pub fn calls_of(&self, command: &str) -> u64 {
        let stats = self.command(&["INFO", "commandstats"]).text();
        let calls = stats.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:calls=")));
        calls.and_then(|calls| calls.split(',').next()?.parse().ok()).unwrap_or(0)
    }

    /// Sends a command on a new connection to a server that may be dead.
    pub fn try_command<A: AsRef<[u8]>>(&self, args: &[A]) -> io::Result<Reply> {
        self.connect()?.command(args)
    }

    /// Returns a field of `INFO`, or of a command with the same format, such as `CLUSTER INFO`.
    pub(crate) fn field(&self, command: &[&str], name: &str) -> Result<String, String> {
        let reply = self.try_command(command).map_err(|error| format!("{}: {error}", self.address()))?;
        let Reply::Bulk(bytes) = reply else { return Err(format!("{}: {reply:?}", self.address())) };
        let text = String::from_utf8_lossy(&bytes);
        let field = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        field.map(str::to_owned).ok_or_else(|| format!("{}: no {name} in {text}", self.address()))
    }

    /// Waits until the server responds. Returns the log if it ends instead.
    pub(crate) fn wait_ready(&self) -> Result<(), String> {
        until("the server responds", || {
            if !self.process.is_alive() {
                return Ok(Err(format!("the process has ended\n{}", self.process.log_tail())));
            }
            // A response alone proves nothing: it may come from another process that took the port.
            if !READY.iter().any(|line| self.process.log().contains(line)) {
                return Err(format!("the process is not ready\n{}", self.process.log_tail()));
            }
            match Connection::open(self.address()).and_then(|mut connection| connection.command(&["PING"])) {
                Ok(Reply::Error(text)) if text.starts_with("LOADING") => Err(text),
                // An authentication error is a response, too.
                Ok(_) => Ok(Ok(())),
                Err(error) => Err(error.to_string()),
            }
        })
    }

    pub(crate) fn lost_race(&self) -> bool {
        self.process.log().contains("Address already in use")
    }
}

/// Tolerance between two successive readings of the same clock.
const CLOCK_TOLERANCE_US: u64 = 50_000;

/// Log lines of a server and of a sentinel that have bound their ports.
const READY: [&str; 2] = ["Ready to accept connections", "Sentinel ID is"];
