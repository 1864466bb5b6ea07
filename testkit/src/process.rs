//! Child process with a log file.

use std::ffi::OsString;
use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::process::{Pid, Signal, kill_process};

use crate::spawner;

/// Command of a process, for its start and restarts.
#[derive(Debug)]
pub(crate) struct Launch {
    pub(crate) program: PathBuf,
    pub(crate) args: Vec<OsString>,
    pub(crate) environment: Vec<(String, String)>,
    pub(crate) folder: PathBuf,
}

/// Child process that is killed on drop.
#[derive(Debug)]
pub(crate) struct Process {
    launch: Launch,
    child: Mutex<Child>,
}

impl Process {
    pub(crate) fn start(launch: Launch) -> Self {
        let child = Mutex::new(launch.spawn());
        Self { launch, child }
    }

    /// Kills the process if it still runs, and starts it again with an empty log.
    pub(crate) fn restart(&self) {
        self.kill();
        *self.child() = self.launch.spawn();
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child().id()
    }

    pub(crate) fn is_alive(&self) -> bool {
        matches!(self.child().try_wait(), Ok(None))
    }

    /// Kills the process and waits until it has ended.
    pub(crate) fn kill(&self) {
        let mut child = self.child();
        // Fails only if the process has already ended.
        let _ = child.kill();
        let _ = child.wait();
    }

    pub(crate) fn signal(&self, signal: Signal) {
        assert!(self.try_signal(signal), "the process has ended: {}", self.log());
    }

    /// Sends a signal if the process is alive. Returns whether it is.
    pub(crate) fn try_signal(&self, signal: Signal) -> bool {
        let mut child = self.child();
        // After the process is reaped, its ID may belong to another process.
        let is_alive = matches!(child.try_wait(), Ok(None));
        if is_alive {
            kill_process(Pid::from_child(&child), signal).expect("a child can be signalled");
        }
        is_alive
    }

    pub(crate) fn log(&self) -> String {
        let bytes = fs::read(self.launch.log_path()).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Returns the last lines of the log, for a panic message.
    pub(crate) fn log_tail(&self) -> String {
        let log = self.log();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }

    fn child(&self) -> MutexGuard<'_, Child> {
        self.child.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Launch {
    fn log_path(&self) -> PathBuf {
        self.folder.join("log")
    }

    fn spawn(&self) -> Child {
        let log = File::create(self.log_path()).expect("the folder of a server is writable");
        let errors = log.try_clone().expect("a file can be shared");
        let mut command = spawner::dying_with_parent(&self.program);
        command.args(&self.args).envs(self.environment.iter().map(|(name, value)| (name, value)));
        command.current_dir(&self.folder).stdin(Stdio::null()).stdout(log).stderr(errors);
        spawner::spawn(command)
            .unwrap_or_else(|error| panic!("cannot run {}: {error}", self.program.display()))
    }
}
