//! Sockets that are listened on.

use std::io;

use tokio::net::{TcpListener, TcpSocket};
use tracing::warn;

use super::Failure;
use slidegate_config::{Address, Listen};

/// How many connections may wait to be let in. If everybody connects at the same moment and this is full, the next one
/// tries again after a second.
const BACKLOG: u32 = 4096;

/// A socket for what the flag called `flag` says.
pub(super) async fn bind(flag: &str, address: &Address) -> Result<TcpListener, Failure> {
    listen(address.as_str()).await.map_err(|error| cannot(flag, address.as_str(), &error))
}

fn cannot(flag: &str, address: &str, error: &io::Error) -> Failure {
    Failure::new(format!("cannot listen on {address}: {error}; choose another address with --{flag}"))
}

/// The same for a protocol that can be left out. Nobody has asked for the address that it has by `default`, so if that
/// is taken it is said and left out: a second server on one machine need not name what it does not use. Unless it
/// `is_needed` by something else that was asked for.
pub(super) async fn bind_or_leave(
    flag: &str,
    asked: Option<Listen>,
    default: &str,
    is_needed: bool,
) -> Result<Option<TcpListener>, Failure> {
    match asked {
        Some(Listen::Off) => Ok(None),
        Some(Listen::At(address)) => bind(flag, &address).await.map(Some),
        None => match listen(default).await {
            Ok(listener) => Ok(Some(listener)),
            Err(error) if is_needed => Err(cannot(flag, default, &error)),
            Err(error) => {
                warn!("not listening on {default}: {error}; choose another address with --{flag}, or off");
                Ok(None)
            }
        },
    }
}

/// On the first of its addresses that can be had.
async fn listen(address: &str) -> io::Result<TcpListener> {
    let mut last = io::Error::other("it has no address");
    for address in tokio::net::lookup_host(address).await? {
        let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
        // Else a server that has just ended keeps its port for a minute.
        #[cfg(unix)]
        socket.set_reuseaddr(true)?;
        match socket.bind(address).and_then(|()| socket.listen(BACKLOG)) {
            Ok(listener) => return Ok(listener),
            Err(error) => last = error,
        }
    }
    Err(last)
}
