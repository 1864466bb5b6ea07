//! Rate and CPU time of a server that runs on one core while all callers run on another.
#![expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

/// Cores of the server and of the callers.
pub(crate) const SERVER_CORE: u32 = 0;
pub(crate) const CALLERS_CORE: u32 = 1;

/// Decisions per second, and server CPU time per decision.
pub(crate) struct Sample {
    pub(crate) per_second: f64,
    pub(crate) server_us: f64,
}

/// Server pinned to its core from its start. Many servers size their thread pool by the cores that they may use.
pub(crate) struct Server(Child);

impl Server {
    /// Starts `command` with its standard output piped.
    pub(crate) fn start(command: &Command) -> Self {
        let mut pinned = Command::new("taskset");
        pinned.args(["-c", &SERVER_CORE.to_string()]).arg(command.get_program()).args(command.get_args());
        let child = pinned.stdout(Stdio::piped()).spawn();
        Self(child.unwrap_or_else(|error| panic!("{pinned:?}: {error}")))
    }

    /// Lines that the server prints. Can be called once.
    pub(crate) fn lines(&mut self) -> impl Iterator<Item = String> {
        BufReader::new(self.0.stdout.take().expect("the output is piped")).lines().map_while(Result::ok)
    }

    pub(crate) fn id(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// CPU seconds that a process has used.
pub(crate) fn cpu_s(process: u32) -> f64 {
    let line = fs::read_to_string(format!("/proc/{process}/stat")).expect("Linux");
    let fields: Vec<&str> = line.rsplit_once(')').expect("a name").1.split_whitespace().collect();
    // Linux counts in hundredths of a second.
    [11, 12].iter().map(|place| fields[*place].parse::<f64>().expect("a number")).sum::<f64>() / 100.0
}

/// Pins all threads of a process, and those that it will start, to a core.
pub(crate) fn pin(process: u32, core: u32) {
    output(Command::new("taskset").args(["-acp", &core.to_string(), &process.to_string()]));
}

/// Runs `work`, which makes `decisions` decisions, and returns their rate per second.
pub(crate) async fn timed(decisions: usize, work: impl Future<Output = ()>) -> f64 {
    let start = Instant::now();
    work.await;
    count(decisions) / start.elapsed().as_secs_f64()
}

/// Runs a program and returns its output. Panics if it fails.
pub(crate) fn output(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
pub(crate) fn count(number: usize) -> f64 {
    number as f64
}
