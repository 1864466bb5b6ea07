//! Template data folder. `initdb` takes a second, so it runs once and each server gets a copy.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use super::{binary, user};

/// Folder of test tools, removed by `cargo clean`.
const TOOLS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../target/tools");

/// All users except the superuser need a password.
const ACCESS: &str = "\
local all all trust
host replication all 127.0.0.1/32 trust
host all postgres 127.0.0.1/32 trust
host all all 127.0.0.1/32 scram-sha-256
";

/// Copies the template to an empty folder.
pub(crate) fn copy_to(data: &Path) {
    static TEMPLATE: OnceLock<PathBuf> = OnceLock::new();
    copy(TEMPLATE.get_or_init(find_or_make), data);
}

fn find_or_make() -> PathBuf {
    let tools = Path::new(TOOLS);
    fs::create_dir_all(tools).expect("the folder of the build is writable");
    let name = format!("postgres-{}-of-{}", binary::version(), user::uid());
    let template = tools.join(&name);
    // Several test binaries may start at once. The kernel releases the lock of a process that dies.
    let lock = File::create(tools.join(format!("{name}.lock"))).expect("the folder of the build is writable");
    lock.lock().expect("a file can be locked");
    if !template.exists() {
        make(&template, &tools.join(format!("{name}.draft")));
    }
    template
}

fn make(template: &Path, draft: &Path) {
    // PostgreSQL's user may lack access to the build folder.
    let place = tempfile::Builder::new().prefix("slidegate-").tempdir().expect("a folder can be made");
    user::give(place.path());
    let data = place.path().join("data");
    let path = data.to_str().expect("a temporary folder has a name that is text");
    let args = ["-D", path, "-U", "postgres", "--no-sync", "--no-locale", "--encoding=UTF8", "--auth=trust"];
    user::run(&binary::binary("initdb"), &args);
    fs::write(data.join("pg_hba.conf"), ACCESS).expect("the folder is writable");
    // A killed process may have left a draft.
    let _ = fs::remove_dir_all(draft);
    fs::create_dir(draft).expect("the folder of the build is writable");
    copy(&data, draft);
    fs::rename(draft, template).expect("the folder of the build is writable");
}

fn copy(from: &Path, to: &Path) {
    let mut copy = Command::new("cp");
    copy.args(["--archive", "--reflink=auto", "--no-target-directory"]).args([from, to]);
    let output = copy.output().expect("there is a `cp`");
    assert!(output.status.success(), "cannot copy: {output:?}");
}
