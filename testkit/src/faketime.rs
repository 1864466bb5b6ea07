//! Processes that live at another time, by libfaketime.

use std::fs;
use std::path::PathBuf;

/// The environment that makes a process see the wall clock `offset` away from the real one, such as `"+1h"` or
/// `"-90s"`. Its monotonic clock stays real.
///
/// ```
/// # use slidegate_testkit::faketime_env;
/// use std::process::Command;
///
/// let year = |environment: Vec<(String, String)>| -> i32 {
///     let date = Command::new("date").arg("+%Y").envs(environment).output().unwrap();
///     String::from_utf8(date.stdout).unwrap().trim().parse().unwrap()
/// };
/// assert!(year(faketime_env("+800d")) > year(Vec::new()));
/// ```
pub fn faketime_env(offset: &str) -> Vec<(String, String)> {
    let library = library().expect("there is no libfaketime.so.1 below /usr/lib: run `make deps`");
    let library = library.to_str().expect("a path of Debian is text");
    let set = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    vec![
        // libc comes before jemalloc then, which Debian's Redis is linked with: that one reads the clock within its
        // first malloc, and libfaketime calls malloc within its first reading of the clock.
        set("LD_PRELOAD", &format!("{library}:libc.so.6")),
        set("FAKETIME", offset),
        // Timers would otherwise be computed from two clocks that disagree.
        set("FAKETIME_DONT_FAKE_MONOTONIC", "1"),
    ]
}

fn library() -> Option<PathBuf> {
    let platforms = fs::read_dir("/usr/lib").ok()?;
    platforms
        .flatten()
        .map(|platform| platform.path().join("faketime/libfaketime.so.1"))
        .find(|path| path.is_file())
}
