//! A folder that is gone when its server is, even if the test is killed.
//!
//! A data folder is too large to be left behind, and a mount outlives every process. So a shell waits for the end of
//! its input, which this process holds open and the kernel closes, and cleans up then.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use super::user;
use crate::spawner;

/// Those that still work in the folder are killed: a busy or stopped backend does not notice that its postmaster died.
const CLEAN_UP: &str = r#"
trap '' HUP INT TERM
read -r _
tries=0
while [ -e "$1" ] && [ $tries -lt 100 ]; do
    find /proc -mindepth 2 -maxdepth 2 -name cwd \( -lname "$1" -o -lname "$1/*" \) |
        cut -d/ -f3 | xargs -r kill -KILL
    umount "$1/disk" || umount --lazy "$1/disk"
    rm -rf "$1" && exit
    tries=$((tries + 1))
    sleep 0.1
done
"#;

/// A folder of the one who runs PostgreSQL, with one for the data that may be a small disk.
#[derive(Debug)]
pub(crate) struct Folder {
    path: PathBuf,
    is_mounted: bool,
    cleaner: Child,
}

impl Folder {
    pub(crate) fn make(tmpfs_mb: Option<u32>) -> Self {
        let path =
            tempfile::Builder::new().prefix("slidegate-").tempdir().expect("a folder can be made").keep();
        let mut cleaner = Command::new("sh");
        cleaner.args(["-c", CLEAN_UP, "sh"]).arg(&path).current_dir("/");
        cleaner.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let cleaner = spawner::spawn(cleaner).expect("there is a shell");
        let folder = Self { path, is_mounted: tmpfs_mb.is_some(), cleaner };
        user::give(&folder.path);
        DirBuilder::new().mode(0o700).create(folder.disk()).expect("the folder is writable");
        user::give(&folder.disk());
        if let Some(megabytes) = tmpfs_mb {
            folder.mount(megabytes);
        }
        DirBuilder::new().mode(0o700).create(folder.data()).expect("the folder is writable");
        user::give(&folder.data());
        folder
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    fn disk(&self) -> PathBuf {
        self.path.join("disk")
    }

    pub(crate) fn data(&self) -> PathBuf {
        self.disk().join("data")
    }

    /// What takes the room that is left.
    pub(crate) fn ballast(&self) -> PathBuf {
        self.disk().join("ballast")
    }

    pub(crate) fn is_mounted(&self) -> bool {
        self.is_mounted
    }

    fn mount(&self, megabytes: u32) {
        let owner = user::mount_options().expect("only root can mount a disk");
        let mut mount = Command::new("mount");
        mount
            .args(["-t", "tmpfs", "-o", &format!("size={megabytes}m,{owner}"), "slidegate"])
            .arg(self.disk());
        let output = mount.output().expect("there is a `mount`");
        assert!(output.status.success(), "cannot mount: {output:?}");
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        drop(self.cleaner.stdin.take());
        let _ = self.cleaner.wait();
    }
}
