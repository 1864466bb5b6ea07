//! Location of PostgreSQL's binaries.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Debian's folder for the version that the tests use.
const DEBIAN: &str = "/usr/lib/postgresql/15/bin";

const VARIABLE: &str = "SLIDEGATE_POSTGRES_BIN";

/// Returns the path of a server binary. Debian keeps them off `PATH`.
pub(crate) fn binary(name: &str) -> PathBuf {
    let folder = env::var_os(VARIABLE)
        .map(PathBuf::from)
        .or_else(|| Path::new(DEBIAN).is_dir().then(|| DEBIAN.into()))
        .or_else(by_pg_config);
    folder.map(|folder| folder.join(name)).filter(|binary| binary.is_file()).unwrap_or_else(|| {
        panic!(
            "there is no {name}: run `make deps`, or name the folder of PostgreSQL's binaries in {VARIABLE}"
        )
    })
}

fn by_pg_config() -> Option<PathBuf> {
    let output = Command::new("pg_config").arg("--bindir").output().ok()?;
    Some(String::from_utf8(output.stdout).ok()?.trim().into())
}

/// Returns the server's version, such as `15.18`.
pub(crate) fn version() -> String {
    let output = Command::new(binary("postgres")).arg("--version").output().expect("the binary runs");
    let text = String::from_utf8_lossy(&output.stdout);
    text.split_whitespace().nth(2).unwrap_or_else(|| panic!("no version in {output:?}")).to_owned()
}
