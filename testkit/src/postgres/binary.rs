//! Where the binaries of PostgreSQL are.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Where Debian puts those of the version that the tests are written for.
const DEBIAN: &str = "/usr/lib/postgresql/15/bin";

const VARIABLE: &str = "SLIDEGATE_POSTGRES_BIN";

/// A binary of the server's package; none of these is on `PATH`.
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
    let answer = Command::new("pg_config").arg("--bindir").output().ok()?;
    Some(String::from_utf8(answer.stdout).ok()?.trim().into())
}

/// Such as `15.18`.
pub(crate) fn version() -> String {
    let answer = Command::new(binary("postgres")).arg("--version").output().expect("it is a binary");
    let text = String::from_utf8_lossy(&answer.stdout);
    text.split_whitespace().nth(2).unwrap_or_else(|| panic!("no version in {answer:?}")).to_owned()
}
