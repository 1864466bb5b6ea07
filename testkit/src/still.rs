//! Whether a process stands still. A signal that stops it is sent before it does, and some of its threads may go on for a
//! moment.

use std::fs;

use crate::wait::until;

/// Waits until all threads of a process that was sent SIGSTOP have stopped, or ended.
#[track_caller]
pub fn until_still(process: u32) {
    until("it stands still", || if runs(process) { Err(format!("{process} runs")) } else { Ok(()) });
}

/// Whether any of its threads does.
fn runs(process: u32) -> bool {
    // There are none of a process that is gone.
    let threads = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    threads.into_iter().any(|thread| {
        let stat = fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
        stat.rsplit_once(") ").is_some_and(|(_, state)| !state.starts_with(['T', 'Z', 'X']))
    })
}
