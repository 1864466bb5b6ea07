//! Waiting for a condition. This is the one file of the kit that pauses.

use std::time::Duration;

/// A pause is short, for most conditions hold after one or two.
const PAUSE: Duration = Duration::from_millis(10);

/// Half a minute in all: a bound for what hangs, generous enough for a machine that is busy.
const PAUSES: u32 = 3_000;

/// Asks until `condition` holds, and gives what it found; panics if it does not hold within some half a minute.
///
/// `Err` says what was seen instead, and the panic says the last of these. Blocks its thread.
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
    panic!("waited in vain: {what}; seen at last: {seen}");
}

#[expect(clippy::disallowed_methods, reason = "another process has no condition variable to wait upon")]
fn pause() {
    std::thread::sleep(PAUSE);
}
