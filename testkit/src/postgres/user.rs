//! User of the PostgreSQL processes. PostgreSQL does not run as root, and tests that mount run as root.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::LazyLock;

use rustix::process::{geteuid, getuid};

use crate::binary::on_path;

struct User {
    uid: u32,
    gid: u32,
}

/// User to switch to if this process is root, otherwise `None`.
static USER: LazyLock<Option<User>> = LazyLock::new(|| {
    let users = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let account = || ["postgres", "nobody"].iter().find_map(|name| User::find(&users, name));
    geteuid().is_root().then(|| account().expect("there is a user `postgres` or `nobody`"))
});

impl User {
    fn find(users: &str, name: &str) -> Option<Self> {
        let user = users.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        let mut fields = user.split(':').skip(1);
        Some(Self { uid: fields.next()?.parse().ok()?, gid: fields.next()?.parse().ok()? })
    }
}

/// User ID of the PostgreSQL processes.
pub(crate) fn uid() -> u32 {
    USER.as_ref().map_or_else(|| getuid().as_raw(), |user| user.uid)
}

/// Returns whether this process may mount and create namespaces. Root in a container often may not.
pub(crate) fn is_admin() -> bool {
    static IS_ADMIN: LazyLock<bool> = LazyLock::new(|| {
        let tried = Command::new("unshare").args(["--ipc", "--mount", "true"]).output();
        USER.is_some() && tried.is_ok_and(|output| output.status.success())
    });
    *IS_ADMIN
}

/// Mount options for a file system that belongs to PostgreSQL's user.
pub(crate) fn mount_options() -> String {
    USER.as_ref().map(|user| format!("uid={},gid={},mode=0700", user.uid, user.gid)).unwrap_or_default()
}

/// Gives a file or folder to PostgreSQL's user.
pub(crate) fn give(path: &Path) {
    if let Some(user) = &*USER {
        chown(path, Some(user.uid), Some(user.gid)).expect("root may give what it has");
    }
}

/// Returns the wrapper program and its first arguments that run `program` as PostgreSQL's user.
///
/// The wrapper creates an IPC namespace, so the kernel frees System V shared memory with the last process. Otherwise
/// each SIGKILL would leave a segment behind, until the machine has no more.
pub(crate) fn wrapped(program: &Path) -> (PathBuf, Vec<OsString>) {
    let Some(user) = &*USER else { return (program.to_owned(), Vec::new()) };
    let (uid, gid) = (user.uid.to_string(), user.gid.to_string());
    // A change of the user clears the parent-death signal, so the wrapper sets it again.
    let words = ["unshare", "--ipc", "setpriv", "--reuid", &uid, "--regid", &gid, "--clear-groups"];
    let words = if is_admin() { &words[..] } else { &words[2..] };
    let args = words[1..].iter().chain(&["--pdeathsig", "KILL"]).map(OsString::from);
    let wrapper = on_path(words[0]).expect("util-linux is everywhere");
    (wrapper, args.chain([program.into()]).collect())
}

/// Runs one of PostgreSQL's tools. Panics if it fails.
#[track_caller]
pub(crate) fn run(program: &Path, args: &[&str]) -> Output {
    let (wrapper, first) = wrapped(program);
    let mut command = Command::new(wrapper);
    command.args(first).args(args).env("LC_ALL", "C").current_dir("/");
    let output = command.output().unwrap_or_else(|error| panic!("cannot run {}: {error}", program.display()));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{} {args:?}: {}\n{errors}", program.display(), output.status);
    output
}
