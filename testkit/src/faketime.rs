//! Processes with a shifted wall clock, through libfaketime.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Returns the environment that shifts a process's wall clock by `offset`, such as `"+1h"` or `"-90s"`. Its monotonic
/// clock stays real.
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
    let mut environment = preloaded();
    environment.push(("FAKETIME".to_owned(), offset.to_owned()));
    environment
}

/// Environment that reads the offset from a file in the process's folder, so that it can change at runtime.
pub(crate) fn environment_in(folder: &Path) -> Vec<(String, String)> {
    let file = path(folder).to_str().expect("a temporary folder has a name that is text").to_owned();
    let mut environment = preloaded();
    environment.push(("FAKETIME_TIMESTAMP_FILE".to_owned(), file));
    // Without this, libfaketime reads the file only every ten seconds.
    environment.push(("FAKETIME_NO_CACHE".to_owned(), "1".to_owned()));
    // A time without a sign is in seconds since the Unix epoch.
    environment.push(("FAKETIME_FMT".to_owned(), "%s".to_owned()));
    environment
}

pub(crate) fn set_in(folder: &Path, offset: &str) {
    let draft = folder.join("faketime.draft");
    fs::write(&draft, offset).expect("the folder is writable");
    // Renaming is atomic; the process may be reading the file.
    fs::rename(draft, path(folder)).expect("the folder is writable");
}

/// Returns the microseconds of the wall clock that processes with this folder's environment see.
pub(crate) fn now_in(folder: &Path) -> i64 {
    let date =
        Command::new("date").arg("+%s%6N").envs(environment_in(folder)).output().expect("there is a `date`");
    let text = String::from_utf8_lossy(&date.stdout);
    text.trim().parse().unwrap_or_else(|error| panic!("{error}: {date:?}"))
}

fn path(folder: &Path) -> PathBuf {
    folder.join("faketime")
}

fn preloaded() -> Vec<(String, String)> {
    let library = library().expect("there is no libfaketime.so.1 below /usr/lib: run `make deps`");
    let library = library.to_str().expect("a path of Debian is text");
    vec![
        // Loads libc before jemalloc, which Debian's Redis links. jemalloc reads the clock within its first malloc, and
        // libfaketime calls malloc within its first clock reading.
        ("LD_PRELOAD".to_owned(), format!("{library}:libc.so.6")),
        // Without this, timers are computed from two clocks that disagree.
        ("FAKETIME_DONT_FAKE_MONOTONIC".to_owned(), "1".to_owned()),
    ]
}

fn library() -> Option<PathBuf> {
    let platforms = fs::read_dir("/usr/lib").ok()?;
    platforms
        .flatten()
        .map(|platform| platform.path().join("faketime/libfaketime.so.1"))
        .find(|path| path.is_file())
}
