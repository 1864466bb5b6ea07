//! Stopped processes. SIGSTOP takes effect with a delay, and threads of one process stop at different times.

use std::{fs, io};

use crate::wait::until;

/// Linux's `ESRCH`.
const NO_SUCH_PROCESS: i32 = 3;

/// Waits until all threads of a process have stopped after SIGSTOP, or ended.
#[track_caller]
pub fn until_stopped(process: u32) {
    until("the process has stopped", || {
        if is_running(process) { Err(format!("process {process} is running")) } else { Ok(()) }
    });
}

/// Returns whether any thread of the process runs.
fn is_running(process: u32) -> bool {
    let Some(threads) = unless_gone(fs::read_dir(format!("/proc/{process}/task"))) else { return false };
    threads.filter_map(unless_gone).any(|thread| {
        let stat = unless_gone(fs::read_to_string(thread.path().join("stat")));
        stat.is_some_and(|stat| {
            let state = stat.rsplit_once(") ").expect("a name in brackets").1;
            !state.starts_with(['T', 'Z', 'X'])
        })
    })
}

/// Returns the result of a read, or `None` if the process or thread has ended meanwhile.
fn unless_gone<T>(read: io::Result<T>) -> Option<T> {
    match read {
        Ok(read) => Some(read),
        // Linux returns `ESRCH` for a thread that ends during the read.
        Err(error)
            if error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(NO_SUCH_PROCESS) =>
        {
            None
        }
        Err(error) => panic!("/proc: {error}"),
    }
}
