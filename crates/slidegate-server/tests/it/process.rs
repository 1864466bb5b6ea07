//! The real binary.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::Value;
use slidegate_testkit::until_stopped;

use crate::harness::{Reply, request};

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
    // Tests run at the same time.
    command.env("SLIDEGATE_ADMIN", "127.0.0.1:0").env("SLIDEGATE_GRPC", "127.0.0.1:0");
    command
}

/// Exit code, standard output, standard error.
pub(crate) fn outcome(command: &mut Command) -> (i32, String, String) {
    let Output { status, stdout, stderr } = command.output().unwrap();
    (status.code().unwrap(), String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap())
}

/// A file that goes away with the test.
pub(crate) struct TempFile(std::path::PathBuf);

impl TempFile {
    pub(crate) fn new(name: &str, text: &str) -> Self {
        // Tests that run at the same time may choose the same name.
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
        // What a service on it has kept there.
        let _ = std::fs::remove_file(self.0.with_extension("state.json"));
    }
}

/// A `slidegate serve` that has said where it listens.
pub(crate) struct Serving {
    child: Child,
    pub(crate) greeting: Vec<String>,
}

impl Serving {
    pub(crate) fn start(command: &mut Command) -> Self {
        Self::start_with_log(command, Stdio::null())
    }

    pub(crate) fn start_with_log(command: &mut Command, log: Stdio) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(log).spawn().unwrap();
        let mut greeting = Vec::new();
        for line in BufReader::new(child.stdout.take().unwrap()).lines() {
            greeting.push(line.unwrap());
            if greeting.last().unwrap().starts_with("try: ") {
                return Self { child, greeting };
            }
        }
        panic!("it ended with {:?} after {greeting:?}", child.wait());
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn url(&self) -> &str {
        self.greeting[0].strip_prefix("slidegate serves ").unwrap()
    }

    pub(crate) fn check(&self, body: &Value) -> Reply {
        request(self.address(), "POST", "/v1/check", body.to_string().as_bytes())
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> Reply {
        request(self.address(), "POST", path, body.to_string().as_bytes())
    }

    /// Where gRPC is served.
    pub(crate) fn grpc(&self) -> &str {
        self.greeting.iter().find_map(|line| line.strip_prefix("grpc: ")).unwrap()
    }

    pub(crate) fn get(&self, path: &str) -> Reply {
        request(self.address(), "GET", path, b"")
    }

    pub(crate) fn refund(&self, body: &Value) -> Reply {
        request(self.address(), "POST", "/v1/refund", body.to_string().as_bytes())
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.url().strip_prefix("http://").unwrap().parse().unwrap()
    }

    pub(crate) fn line_to_try(&self) -> &str {
        self.greeting.last().unwrap().strip_prefix("try: ").unwrap()
    }

    pub(crate) fn send_signal(&self, name: &str) {
        let kill = format!("kill -{name} {}", self.child.id());
        assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success());
    }

    /// Stops it where it is.
    pub(crate) fn stall(&self) {
        self.send_signal("STOP");
        until_stopped(self.child.id());
    }

    /// How it has ended, if it has.
    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().unwrap()
    }

    /// Sends a signal that ends it.
    pub(crate) fn signal(&mut self, name: &str) -> ExitStatus {
        self.send_signal(name);
        self.child.wait().unwrap()
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
