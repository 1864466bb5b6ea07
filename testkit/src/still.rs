//! Whether a process stands still. A signal that stops it is sent before it does, and some of its threads may go on for a
//! moment.

use std::{fs, io};

use crate::wait::until;

/// `ESRCH` of Linux.
const NO_SUCH_PROCESS: i32 = 3;

/// Waits until all threads of a process that was sent SIGSTOP have stopped, or ended.
#[track_caller]
pub fn until_still(process: u32) {
    until("it stands still", || if runs(process) { Err(format!("{process} runs")) } else { Ok(()) });
}

/// Whether any of its threads does.
fn runs(process: u32) -> bool {
    let Some(threads) = unless_gone(fs::read_dir(format!("/proc/{process}/task"))) else { return false };
    threads.filter_map(unless_gone).any(|thread| {
        let stat = unless_gone(fs::read_to_string(thread.path().join("stat")));
        stat.is_some_and(|stat| {
            let state = stat.rsplit_once(") ").expect("a name in brackets").1;
            !state.starts_with(['T', 'Z', 'X'])
        })
    })
}

/// What was read, unless the process or its thread has ended meanwhile.
fn unless_gone<T>(read: io::Result<T>) -> Option<T> {
    match read {
        Ok(read) => Some(read),
        // The second is said of a thread that ends while it is looked at.
        Err(error)
            if error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(NO_SUCH_PROCESS) =>
        {
            None
        }
        Err(error) => panic!("/proc: {error}"),
    }
}
