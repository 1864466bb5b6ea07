//! An example that runs, and ends with the test.

use std::io::{BufRead, BufReader, Lines};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};

pub(crate) struct Example {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Example {
    pub(crate) fn start(name: &str, words: &[&str]) -> Self {
        let mut child = Command::new(path(name)).args(words).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }

    /// What follows `start` on the next line that it prints.
    pub(crate) fn says(&mut self, start: &str) -> String {
        let line =
            self.lines.next().unwrap_or_else(|| panic!("it ended with {:?}", self.child.wait())).unwrap();
        line.strip_prefix(start)
            .unwrap_or_else(|| panic!("{line:?} does not start with {start:?}"))
            .to_owned()
    }

    /// All that it has yet to print, when it has ended well.
    pub(crate) fn ends(&mut self) -> Vec<String> {
        let lines = self.lines.by_ref().map(Result::unwrap).collect();
        assert!(self.child.wait().unwrap().success());
        lines
    }
}

impl Drop for Example {
    fn drop(&mut self) {
        // Fails only if it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Where Cargo puts examples: beside the folder of this test. It builds them along with all tests, but not along with
/// this one alone.
fn path(name: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let path = test.ancestors().nth(2).unwrap().join("examples").join(name);
    assert!(path.exists(), "{} is missing: cargo build --package slidegate --examples", path.display());
    path
}

/// What a command prints that somebody copies into a shell.
pub(crate) fn typed(line: &str) -> String {
    let output = Command::new("sh").args(["-c", line]).output().unwrap();
    assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}
