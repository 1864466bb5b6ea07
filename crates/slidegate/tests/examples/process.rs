//! A running example, which is killed when the test ends.

use std::io::{BufRead, BufReader, Lines};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};

pub(crate) struct Example {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Example {
    pub(crate) fn start(name: &str, arguments: &[&str]) -> Self {
        let mut child = Command::new(path(name)).args(arguments).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }

    /// Reads the next line of output and returns what follows `start`.
    pub(crate) fn read_line(&mut self, start: &str) -> String {
        let line = self
            .lines
            .next()
            .unwrap_or_else(|| panic!("the example ended with {:?}", self.child.wait()))
            .unwrap();
        line.strip_prefix(start)
            .unwrap_or_else(|| panic!("{line:?} does not start with {start:?}"))
            .to_owned()
    }

    /// Waits for a successful exit and returns the remaining lines of output.
    pub(crate) fn finish(&mut self) -> Vec<String> {
        let lines = self.lines.by_ref().map(Result::unwrap).collect();
        assert!(self.child.wait().unwrap().success());
        lines
    }
}

impl Drop for Example {
    fn drop(&mut self) {
        // Fails only if the process has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the path of a built example, beside the folder of this test. Cargo builds examples with all tests, but not
/// with this test alone.
fn path(name: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let path = test.ancestors().nth(2).unwrap().join("examples").join(name);
    assert!(path.exists(), "{} is missing: cargo build --package slidegate --examples", path.display());
    path
}

/// Runs a command line in a shell and returns its output.
pub(crate) fn run_shell(line: &str) -> String {
    let output = Command::new("sh").args(["-c", line]).output().unwrap();
    assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}
