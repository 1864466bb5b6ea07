//! What a server shall be like.

use std::ffi::OsString;
use std::fs;

use tempfile::TempDir;

use crate::process::{Launch, Process};
use crate::server::Server;
use crate::tls::Tls;
use crate::{Flavour, faketime_env, port};

/// So often may somebody else be faster to take a port.
const RACES: usize = 20;

/// What the binary is told to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Data,
}

impl Role {
    fn args(self, port: u16) -> Vec<String> {
        let port = port.to_string();
        let mut args =
            vec!["--bind", "127.0.0.1", "--port", &port, "--protected-mode", "no", "--daemonize", "no"];
        match self {
            // A replica would otherwise wait five seconds for others to synchronise with it.
            Self::Data => {
                args.extend(["--save", "", "--appendonly", "no", "--repl-diskless-sync-delay", "0"]);
            }
        }
        args.into_iter().map(String::from).collect()
    }
}

/// A server to be.
#[derive(Clone, Debug)]
#[must_use]
pub struct ServerBuilder {
    flavour: Flavour,
    role: Role,
    args: Vec<String>,
    files: Vec<(String, String)>,
    environment: Vec<(String, String)>,
    with_socket: bool,
    with_tls: bool,
}

impl ServerBuilder {
    pub(crate) fn new(flavour: Flavour, role: Role) -> Self {
        let (args, files, environment) = Default::default();
        Self { flavour, role, args, files, environment, with_socket: false, with_tls: false }
    }

    /// More of the configuration, as on the command line: `["--maxmemory", "1mb"]`. Relative paths are in the
    /// server's own folder.
    pub fn args<A: Into<String>>(mut self, args: impl IntoIterator<Item = A>) -> Self {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    /// A file in the server's own folder, such as one for `--aclfile`.
    pub fn file(mut self, name: &str, text: &str) -> Self {
        self.files.push((name.to_owned(), text.to_owned()));
        self
    }

    /// Listens on a Unix socket as well, see [`Server::socket_path`].
    pub fn unix_socket(mut self) -> Self {
        self.with_socket = true;
        self
    }

    /// Listens for TLS as well, on a port of its own, see [`Server::tls`].
    pub fn tls(mut self) -> Self {
        self.with_tls = true;
        self
    }

    /// Lives at another time, such as `"+1h"`, see [`faketime_env`].
    pub fn faketime(mut self, offset: &str) -> Self {
        self.environment = faketime_env(offset);
        self
    }

    /// Starts it and waits until it answers.
    pub fn start(self) -> Server {
        let mut log = String::new();
        for _ in 0..RACES {
            let server = self.spawn();
            match server.wait_ready() {
                Ok(()) => return server,
                Err(_) if server.lost_race() => log = server.process.log_tail(),
                Err(seen) => panic!("{:?} does not start: {seen}", self.flavour),
            }
        }
        panic!("{:?} found no port in {RACES} attempts:\n{log}", self.flavour);
    }

    fn spawn(&self) -> Server {
        let folder = tempfile::Builder::new().prefix("slidegate-").tempdir().expect("a folder can be made");
        for (name, text) in &self.files {
            fs::write(folder.path().join(name), text).expect("the folder is writable");
        }
        let port = port::free();
        let tls = self.with_tls.then(|| Tls::make(folder.path(), port::free()));
        let socket = self.with_socket.then(|| folder.path().join("socket"));

        let mut args: Vec<String> = self.role.args(port);
        if let Some(tls) = &tls {
            args.extend(tls.args());
        }
        if self.with_socket {
            args.extend(["--unixsocket", "socket"].map(String::from));
        }
        args.extend(self.args.iter().cloned());

        let process = Process::start(self.launch(&folder, args));
        let password = self.args.iter().skip_while(|arg| *arg != "--requirepass").nth(1).cloned();
        Server { process, flavour: self.flavour, port, tls, socket, password, folder }
    }

    fn launch(&self, folder: &TempDir, args: Vec<String>) -> Launch {
        Launch {
            program: self.flavour.binary(),
            args: args.into_iter().map(OsString::from).collect(),
            environment: self.environment.clone(),
            folder: folder.path().to_owned(),
        }
    }
}
