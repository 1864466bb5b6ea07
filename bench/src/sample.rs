//! How fast a server is asked: the server on one core, everybody who calls it on another.
#![expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]

use std::process::Command;
use std::time::Instant;

/// The server's core, and that of the callers.
pub(crate) const SERVER_CORE: u32 = 0;
pub(crate) const CALLERS_CORE: u32 = 1;

/// How fast decisions were made, and what one cost the server.
pub(crate) struct Sample {
    pub(crate) per_second: f64,
    pub(crate) server_us: f64,
}

/// All threads of a process, and those that it will start.
pub(crate) fn pin(process: u32, core: u32) {
    output(Command::new("taskset").args(["-acp", &core.to_string(), &process.to_string()]));
}

/// So many in a second, as `work` does `decisions` of them.
pub(crate) async fn timed(decisions: usize, work: impl Future<Output = ()>) -> f64 {
    let start = Instant::now();
    work.await;
    count(decisions) / start.elapsed().as_secs_f64()
}

/// What a program of others prints. It must end well.
pub(crate) fn output(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
pub(crate) fn count(number: usize) -> f64 {
    number as f64
}
