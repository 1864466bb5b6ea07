//! Builder of a Redis or Valkey server.

use std::ffi::OsString;
use std::fs;
use std::path::Path;

use crate::process::{Launch, Process};
use crate::server::Server;
use crate::tls::Tls;
use crate::{Flavour, faketime, port};

/// Attempts to find a port before another process binds it.
const PORT_ATTEMPTS: usize = 20;

/// Mode in which the binary runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Data,
    /// A node has a second port for the cluster bus. Its default, the port plus 10000, may be taken.
    ClusterNode {
        node_timeout_ms: u32,
    },
    /// Reads, and rewrites, `sentinel.conf`.
    Sentinel,
}

impl Role {
    fn args(self, port: u16, bus_port: Option<u16>) -> Vec<String> {
        let mut args = Vec::new();
        if self == Self::Sentinel {
            args.extend(["sentinel.conf", "--sentinel"].map(String::from));
        }
        let mut set = |option: &str, value: &str| args.extend([option.to_owned(), value.to_owned()]);
        set("--bind", "127.0.0.1");
        set("--port", &port.to_string());
        set("--protected-mode", "no");
        set("--daemonize", "no");
        if self == Self::Sentinel {
            return args;
        }
        set("--save", "");
        set("--appendonly", "no");
        // Without this, a replica waits five seconds for other replicas that synchronise.
        set("--repl-diskless-sync-delay", "0");
        if let (Self::ClusterNode { node_timeout_ms }, Some(bus_port)) = (self, bus_port) {
            set("--cluster-enabled", "yes");
            set("--cluster-port", &bus_port.to_string());
            set("--cluster-announce-ip", "127.0.0.1");
            set("--cluster-node-timeout", &node_timeout_ms.to_string());
            // A replica stands for election however long it was without its master, and keeps that master.
            set("--cluster-replica-validity-factor", "0");
            set("--cluster-allow-replica-migration", "no");
        }
        args
    }
}

/// Configuration of a server that is not started yet.
#[derive(Clone, Debug)]
#[must_use]
pub struct ServerBuilder {
    flavour: Flavour,
    role: Role,
    args: Vec<String>,
    files: Vec<(String, String)>,
    faketime: Option<String>,
    with_socket: bool,
    with_tls: bool,
}

impl Server {
    /// Starts a server with its default configuration.
    pub fn start(flavour: Flavour) -> Self {
        Self::builder(flavour).start()
    }

    /// Returns a builder for a server.
    pub fn builder(flavour: Flavour) -> ServerBuilder {
        ServerBuilder::new(flavour, Role::Data)
    }
}

impl ServerBuilder {
    pub(crate) fn new(flavour: Flavour, role: Role) -> Self {
        let (args, files, faketime) = Default::default();
        Self { flavour, role, args, files, faketime, with_socket: false, with_tls: false }
    }

    /// Adds command-line options: `["--maxmemory", "1mb"]`. Relative paths are relative to the server's folder.
    pub fn args<A: Into<String>>(mut self, args: impl IntoIterator<Item = A>) -> Self {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    /// Adds a file to the server's folder, such as one for `--aclfile`.
    pub fn file(mut self, name: &str, text: &str) -> Self {
        self.files.push((name.to_owned(), text.to_owned()));
        self
    }

    /// Also listens on a Unix socket, see [`Server::socket_path`].
    pub fn unix_socket(mut self) -> Self {
        self.with_socket = true;
        self
    }

    /// Also listens for TLS on a separate port, see [`Server::tls`].
    pub fn tls(mut self) -> Self {
        self.with_tls = true;
        self
    }

    /// Shifts the server's wall clock by an offset such as `"+1h"`, until [`Server::set_faketime`].
    pub fn faketime(mut self, offset: &str) -> Self {
        self.faketime = Some(offset.to_owned());
        self
    }

    /// Starts the server and waits until it responds.
    pub fn start(self) -> Server {
        let mut log = String::new();
        for _ in 0..PORT_ATTEMPTS {
            let server = self.spawn();
            match server.wait_ready() {
                Ok(()) => return server,
                Err(_) if server.lost_race() => log = server.process.log_tail(),
                Err(seen) => panic!("{:?} does not start: {seen}", self.flavour),
            }
        }
        panic!("{:?} found no port in {PORT_ATTEMPTS} attempts:\n{log}", self.flavour);
    }

    fn spawn(&self) -> Server {
        let folder = tempfile::Builder::new().prefix("slidegate-").tempdir().expect("a folder can be made");
        for (name, text) in &self.files {
            fs::write(folder.path().join(name), text).expect("the folder is writable");
        }
        let port = port::free();
        let tls = self.with_tls.then(|| Tls::make(folder.path(), port::free()));
        let socket = self.with_socket.then(|| folder.path().join("socket"));
        let bus_port = matches!(self.role, Role::ClusterNode { .. }).then(port::free);

        let mut args: Vec<String> = self.role.args(port, bus_port);
        if let Some(tls) = &tls {
            args.extend(tls.args());
        }
        if self.with_socket {
            args.extend(["--unixsocket", "socket"].map(String::from));
        }
        args.extend(self.args.iter().cloned());

        let process = Process::start(self.launch(folder.path(), args));
        let is_shifted = self.faketime.is_some();
        let password = self.args.iter().skip_while(|arg| *arg != "--requirepass").nth(1).cloned();
        Server { process, flavour: self.flavour, port, bus_port, tls, socket, password, is_shifted, folder }
    }

    fn launch(&self, folder: &Path, args: Vec<String>) -> Launch {
        let mut environment = Vec::new();
        if let Some(offset) = &self.faketime {
            faketime::set_in(folder, offset);
            environment = faketime::environment_in(folder);
        }
        let args = args.into_iter().map(OsString::from).collect();
        Launch { program: self.flavour.binary(), args, environment, folder: folder.to_owned() }
    }
}
