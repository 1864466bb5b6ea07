//! Folder that is removed with its server, even if the test is killed.
//!
//! A data folder is too large to leave behind, and a mount outlives every process. So a shell waits for the end of its
//! input and then cleans up. This process holds that input open; the kernel closes it when the process ends.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use super::user;
use crate::spawner;

/// Kills processes that still run in the folder: a busy or stopped backend does not notice that its postmaster has
/// died.
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

/// Storage of the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Disk {
    /// On the disk of the folder.
    Machine,
    /// In memory. Copying a thousand files is ten times faster there on some machines.
    Memory,
    /// In memory, with a size limit.
    Small { megabytes: u32 },
}

/// Folder that belongs to PostgreSQL's user. Its subfolder for the data may be a separate mount.
#[derive(Debug)]
pub(crate) struct Folder {
    path: PathBuf,
    disk: Disk,
    cleaner: Child,
}

impl Folder {
    pub(crate) fn make(disk: Disk) -> Self {
        let path =
            tempfile::Builder::new().prefix("slidegate-").tempdir().expect("a folder can be made").keep();
        let mut cleaner = Command::new("sh");
        cleaner.args(["-c", CLEAN_UP, "sh"]).arg(&path).current_dir("/");
        cleaner.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let cleaner = spawner::spawn(cleaner).expect("there is a shell");
        let folder = Self { path, disk, cleaner };
        user::give(&folder.path);
        DirBuilder::new().mode(0o700).create(folder.disk_path()).expect("the folder is writable");
        user::give(&folder.disk_path());
        match disk {
            Disk::Machine => {}
            Disk::Memory => folder.mount(""),
            Disk::Small { megabytes } => folder.mount(&format!("size={megabytes}m,")),
        }
        DirBuilder::new().mode(0o700).create(folder.data()).expect("the folder is writable");
        user::give(&folder.data());
        folder
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    fn disk_path(&self) -> PathBuf {
        self.path.join("disk")
    }

    pub(crate) fn data(&self) -> PathBuf {
        self.disk_path().join("data")
    }

    /// File that fills the free space.
    pub(crate) fn ballast(&self) -> PathBuf {
        self.disk_path().join("ballast")
    }

    /// Returns whether filling the disk affects only this server.
    pub(crate) fn is_small(&self) -> bool {
        matches!(self.disk, Disk::Small { .. })
    }

    fn mount(&self, size: &str) {
        let options = format!("{size}{}", user::mount_options());
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &options, "slidegate"]).arg(self.disk_path());
        let output = mount.output().expect("there is a `mount`");
        assert!(output.status.success(), "cannot mount: {}", String::from_utf8_lossy(&output.stderr));
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        drop(self.cleaner.stdin.take());
        let _ = self.cleaner.wait();
    }
}
