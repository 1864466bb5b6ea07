//! Free ports for servers.

use std::collections::HashSet;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::{Ipv4Addr, TcpListener};
use std::ops::Range;
use std::sync::{LazyLock, Mutex, PoisonError};

/// Below the kernel's range for outgoing connections, which starts at 32768. A test that kills a server keeps
/// connecting to its port. The kernel could give a port of its range to that client, which would then be connected to
/// itself and block the port.
const PORTS: Range<u16> = 10_000..32_000;

/// Returns a port that no process listens on and that this process has not returned before.
///
/// Another process may bind it first. The caller has to check for that after it starts a server.
pub fn free() -> u16 {
    static GIVEN: LazyLock<Mutex<HashSet<u16>>> = LazyLock::new(Mutex::default);

    let mut given = GIVEN.lock().unwrap_or_else(PoisonError::into_inner);
    let first = RandomState::new().build_hasher().finish();
    let count = u64::from(PORTS.end - PORTS.start);
    (0..count)
        .map(|step| PORTS.start + (first.wrapping_add(step) % count) as u16)
        .find(|port| !given.contains(port) && is_free(*port) && given.insert(*port))
        .expect("one of 22,000 ports is free")
}

fn is_free(port: u16) -> bool {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok()
}
