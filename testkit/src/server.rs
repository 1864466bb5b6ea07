//! One server.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use rustix::process::Signal;
use tempfile::TempDir;

use crate::builder::{Role, ServerBuilder};
use crate::process::Process;
use crate::still::until_still;
use crate::wait::until;
use crate::{Connection, Flavour, Reply, Tls, faketime};

/// A Redis or Valkey on the loopback interface, with a folder of its own, that keeps nothing on disk.
///
/// It dies when it is dropped, and with the test process however that ends.
#[derive(Debug)]
pub struct Server {
    // Dropped in this order: the process goes before its folder.
    pub(crate) process: Process,
    pub(crate) flavour: Flavour,
    pub(crate) port: u16,
    /// Where the other nodes of a cluster talk to it.
    pub(crate) bus_port: Option<u16>,
    pub(crate) tls: Option<Tls>,
    pub(crate) socket: Option<PathBuf>,
    pub(crate) password: Option<String>,
    pub(crate) is_shifted: bool,
    pub(crate) folder: TempDir,
}

impl Server {
    /// Starts one as it comes.
    pub fn start(flavour: Flavour) -> Self {
        Self::builder(flavour).start()
    }

    /// Starts one that is made to measure.
    pub fn builder(flavour: Flavour) -> ServerBuilder {
        ServerBuilder::new(flavour, Role::Data)
    }

    /// Which of the two it is.
    pub fn flavour(&self) -> Flavour {
        self.flavour
    }

    /// Its port on 127.0.0.1, the same after a [`restart`](Self::restart).
    pub fn port(&self) -> u16 {
        self.port
    }

    /// 127.0.0.1 and its port.
    pub fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    /// `redis://127.0.0.1:PORT`.
    pub fn url(&self) -> String {
        format!("redis://{}", self.address())
    }

    /// Where TLS is spoken. Panics unless it was built with [`ServerBuilder::tls`].
    #[track_caller]
    pub fn tls(&self) -> &Tls {
        self.tls.as_ref().expect("this server was built without tls()")
    }

    /// Its Unix socket. Panics unless it was built with [`ServerBuilder::unix_socket`].
    #[track_caller]
    pub fn socket_path(&self) -> &Path {
        self.socket.as_deref().expect("this server was built without unix_socket()")
    }

    /// Its own folder.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The number of its process, another one after a [`restart`](Self::restart).
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

    /// Sets its wall clock to `offset` from the real one and waits until it has noticed. Panics unless it was built
    /// with [`ServerBuilder::faketime`].
    #[track_caller]
    pub fn set_faketime(&self, offset: &str) {
        assert!(self.is_shifted, "this server was built without faketime()");
        faketime::set_in(self.folder(), offset);
        // Valkey looks at the clock every millisecond only.
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

    /// Kills it, with SIGKILL, and waits until it is gone.
    pub fn kill(&self) {
        self.process.kill();
    }

    /// Whether the process exists.
    pub fn is_alive(&self) -> bool {
        self.process.is_alive()
    }

    /// Kills it if need be and starts it anew, empty, on the same port; waits until it answers.
    pub fn restart(&self) {
        until("its port is free again", || {
            self.process.restart();
            match self.wait_ready() {
                Err(seen) if !self.lost_race() => panic!("{:?} does not start again: {seen}", self.flavour),
                outcome => outcome,
            }
        });
    }

    /// A connection, authenticated if the server was built with `--requirepass`.
    pub fn connect(&self) -> io::Result<Connection> {
        let mut connection = Connection::open(self.address())?;
        if let Some(password) = &self.password {
            connection.command(&["AUTH", password])?;
        }
        Ok(connection)
    }

    /// Sends a command on a connection of its own. Panics if there is no answer; a refusal is a [`Reply::Error`].
    #[track_caller]
    pub fn command<A: AsRef<[u8]>>(&self, args: &[A]) -> Reply {
        self.try_command(args).unwrap_or_else(|error| panic!("no answer from {}: {error}", self.address()))
    }

    /// How many calls of loaded scripts it has served.
    #[track_caller]
    pub fn scripts_run(&self) -> u64 {
        self.calls_of("evalsha")
    }

    /// How many calls of a command it has served.
    #[track_caller]
    pub fn calls_of(&self, command: &str) -> u64 {
        let stats = self.command(&["INFO", "commandstats"]).text();
        let calls = stats.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:calls=")));
        calls.and_then(|calls| calls.split(',').next()?.parse().ok()).unwrap_or(0)
    }

    /// Sends a command on a connection of its own to a server that may be dead.
    pub fn try_command<A: AsRef<[u8]>>(&self, args: &[A]) -> io::Result<Reply> {
        self.connect()?.command(args)
    }

    /// A field of `INFO`, or of what answers alike, such as `CLUSTER INFO`.
    pub(crate) fn field(&self, command: &[&str], name: &str) -> Result<String, String> {
        let reply = self.try_command(command).map_err(|error| format!("{}: {error}", self.address()))?;
        let Reply::Bulk(bytes) = reply else { return Err(format!("{}: {reply:?}", self.address())) };
        let text = String::from_utf8_lossy(&bytes);
        let field = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        field.map(str::to_owned).ok_or_else(|| format!("{}: no {name} in {text}", self.address()))
    }

    /// Waits until it answers, or says how it ended.
    pub(crate) fn wait_ready(&self) -> Result<(), String> {
        until("the server answers", || {
            if !self.process.is_alive() {
                return Ok(Err(format!("it has ended\n{}", self.process.log_tail())));
            }
            // An answer alone would prove nothing: whoever took the port first may have given it.
            if !READY.iter().any(|line| self.process.log().contains(line)) {
                return Err(format!("it is not ready\n{}", self.process.log_tail()));
            }
            match Connection::open(self.address()).and_then(|mut connection| connection.command(&["PING"])) {
                Ok(Reply::Error(text)) if text.starts_with("LOADING") => Err(text),
                // A refusal for want of a password is an answer.
                Ok(_) => Ok(Ok(())),
                Err(error) => Err(error.to_string()),
            }
        })
    }

    pub(crate) fn lost_race(&self) -> bool {
        self.process.log().contains("Address already in use")
    }
}

/// Between two readings, one after another, of the same clock.
const CLOCK_TOLERANCE_US: u64 = 50_000;

/// What a server and a sentinel log once they have bound their ports.
const READY: [&str; 2] = ["Ready to accept connections", "Sentinel ID is"];
