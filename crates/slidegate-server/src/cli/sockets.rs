//! Listening sockets.

use std::io;

use slidegate_config::{Address, Listen};
use tokio::net::{TcpListener, TcpSocket};
use tracing::warn;

use super::Failure;

/// Length of the accept queue. If it is full, a client's connection attempt is repeated only after a second.
const BACKLOG: u32 = 4096;

/// Binds the address of the option `--{flag}`.
pub(super) async fn bind(flag: &str, address: &Address) -> Result<TcpListener, Failure> {
    listen(address.as_str()).await.map_err(|error| bind_error(flag, address.as_str(), &error))
}

fn bind_error(flag: &str, address: &str, error: &io::Error) -> Failure {
    Failure::new(format!("cannot listen on {address}: {error}; choose another address with --{flag}"))
}

/// Binds the address of an optional protocol. Without a configured address, `default` applies. If `default` is in use, the
/// protocol is off, with a warning, so that a second server starts on the same machine; this is an error if the protocol
/// `is_required`.
pub(super) async fn bind_optional(
    flag: &str,
    configured: Option<Listen>,
    default: &str,
    is_required: bool,
) -> Result<Option<TcpListener>, Failure> {
    match configured {
        Some(Listen::Off) => Ok(None),
        Some(Listen::At(address)) => bind(flag, &address).await.map(Some),
        None => match listen(default).await {
            Ok(listener) => Ok(Some(listener)),
            Err(error) if is_required => Err(bind_error(flag, default, &error)),
            Err(error) => {
                warn!("not listening on {default}: {error}; choose another address with --{flag}, or off");
                Ok(None)
            }
        },
    }
}

/// Listens on the first usable address of a host name.
async fn listen(address: &str) -> io::Result<TcpListener> {
    let mut last_error = io::Error::other("the host name has no address");
    for address in tokio::net::lookup_host(address).await? {
        let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
        // Without it the port of a stopped server stays in use for a minute.
        #[cfg(unix)]
        socket.set_reuseaddr(true)?;
        match socket.bind(address).and_then(|()| socket.listen(BACKLOG)) {
            Ok(listener) => return Ok(listener),
            Err(error) => last_error = error,
        }
    }
    Err(last_error)
}
