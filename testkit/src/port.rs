//! Ports for servers that are started by number.

use std::collections::HashSet;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::{Ipv4Addr, TcpListener};
use std::ops::Range;
use std::sync::{LazyLock, Mutex, PoisonError};

/// Below those that the kernel gives to outgoing connections (from 32768 on). A test that kills a server keeps
/// knocking at its port, and a port of the kernel's could meanwhile be given to the very client that knocks: it would
/// be connected with itself, and the server could not come back.
const PORTS: Range<u16> = 10_000..32_000;

/// A port that nobody listens on and that this process has not given out before.
///
/// Another process may still be faster to bind it. Who starts a server on it has to look whether that happened.
pub fn free() -> u16 {
    static GIVEN: LazyLock<Mutex<HashSet<u16>>> = LazyLock::new(Mutex::default);

    let mut given = GIVEN.lock().unwrap_or_else(PoisonError::into_inner);
    let first = RandomState::new().build_hasher().finish();
    let count = u64::from(PORTS.end - PORTS.start);
    (0..count)
        .map(|step| PORTS.start + (first.wrapping_add(step) % count) as u16)
        .find(|port| !given.contains(port) && is_free(*port) && given.insert(*port))
        .expect("one of so many ports is free")
}

fn is_free(port: u16) -> bool {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok()
}
