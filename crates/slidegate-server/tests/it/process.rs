//! Runs the real binary as a child process.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::Value;
use slidegate_testkit::until_stopped;

use crate::harness::{Response, request};

pub(crate) fn slidegate() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_slidegate"));
    for variable in [
        "SLIDEGATE_CONFIG",
        "SLIDEGATE_STORE",
        "SLIDEGATE_HTTP",
        "SLIDEGATE_RESP",
        "SLIDEGATE_ENVOY_CONFIG",
        "SLIDEGATE_TOKEN",
        "STATE_DIRECTORY",
        "SSL_CERT_DIR",
        "RUST_LOG",
    ] {
        command.env_remove(variable);
    }
    // Tests run in parallel, so each server gets its own ports.
    command.env("SLIDEGATE_ADMIN", "127.0.0.1:0").env("SLIDEGATE_GRPC", "127.0.0.1:0");
    command
}

/// Runs the command to its end and returns its exit code, standard output and standard error.
pub(crate) fn outcome(command: &mut Command) -> (i32, String, String) {
    let Output { status, stdout, stderr } = command.output().unwrap();
    (status.code().unwrap(), String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap())
}

/// Temporary file that is removed on drop.
pub(crate) struct TempFile(std::path::PathBuf);

impl TempFile {
    pub(crate) fn new(name: &str, text: &str) -> Self {
        // Tests that run in parallel may choose the same name.
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let (process, count) = (std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(format!("slidegate-{process}-{count}-{name}.yaml"));
        std::fs::write(&path, text).unwrap();
        Self(path)
    }

    pub(crate) fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for TempFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
        // A service with this configuration keeps the changes of its admin API beside it.
        let _ = std::fs::remove_file(self.0.with_extension("state.json"));
    }
}

/// A running `slidegate serve` that has printed its addresses.
pub(crate) struct ServeProcess {
    child: Child,
    pub(crate) startup_lines: Vec<String>,
}

impl ServeProcess {
    pub(crate) fn start(command: &mut Command) -> Self {
        Self::start_with_log(command, Stdio::null())
    }

    pub(crate) fn start_with_log(command: &mut Command, log: Stdio) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(log).spawn().unwrap();
        let mut startup_lines = Vec::new();
        for line in BufReader::new(child.stdout.take().unwrap()).lines() {
            startup_lines.push(line.unwrap());
            if startup_lines.last().unwrap().starts_with("try: ") {
                return Self { child, startup_lines };
            }
        }
        panic!("exited with {:?} after {startup_lines:?}", child.wait());
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn url(&self) -> &str {
        self.startup_lines[0].strip_prefix("slidegate serves ").unwrap()
    }

    pub(crate) fn check(&self, body: &Value) -> Response {
        request(self.address(), "POST", "/v1/check", body.to_string().as_bytes())
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> Response {
        request(self.address(), "POST", path, body.to_string().as_bytes())
    }

    /// Returns the address of the gRPC listener.
    pub(crate) fn grpc_address(&self) -> &str {
        self.startup_lines.iter().find_map(|line| line.strip_prefix("grpc: ")).unwrap()
    }

    pub(crate) fn get(&self, path: &str) -> Response {
        request(self.address(), "GET", path, b"")
    }

    pub(crate) fn refund(&self, body: &Value) -> Response {
        request(self.address(), "POST", "/v1/refund", body.to_string().as_bytes())
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.url().strip_prefix("http://").unwrap().parse().unwrap()
    }

    pub(crate) fn example_command(&self) -> &str {
        self.startup_lines.last().unwrap().strip_prefix("try: ").unwrap()
    }

    pub(crate) fn send_signal(&self, name: &str) {
        let kill = format!("kill -{name} {}", self.child.id());
        assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success());
    }

    /// Suspends the process with SIGSTOP and waits until it is stopped.
    pub(crate) fn suspend(&self) {
        self.send_signal("STOP");
        until_stopped(self.child.id());
    }

    /// Returns the exit status if the process has exited.
    pub(crate) fn try_wait(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().unwrap()
    }

    /// Sends a signal that ends the process and waits for its exit.
    pub(crate) fn signal_and_wait(&mut self, name: &str) -> ExitStatus {
        self.send_signal(name);
        self.child.wait().unwrap()
    }
}

impl Drop for ServeProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
