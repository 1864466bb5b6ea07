//! Polling for a condition. No other file of the kit sleeps.

use std::time::Duration;

/// Short, because most conditions hold after one or two polls.
const PAUSE: Duration = Duration::from_millis(10);

/// Half a minute in total, enough for a busy machine.
const PAUSES: u32 = 3_000;

/// Polls `condition` until it returns `Ok`, and returns its value. Panics after half a minute.
///
/// `Err` describes the current state; the panic message contains the last one. Blocks the thread.
#[track_caller]
pub fn until<T>(what: &str, mut condition: impl FnMut() -> Result<T, String>) -> T {
    let mut seen = String::new();
    for _ in 0..PAUSES {
        match condition() {
            Ok(found) => return found,
            Err(instead) => seen = instead,
        }
        pause();
    }
    panic!("timed out waiting until {what}; last state: {seen}");
}

#[expect(clippy::disallowed_methods, reason = "another process offers no condition variable")]
fn pause() {
    std::thread::sleep(PAUSE);
}
