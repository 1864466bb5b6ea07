//! Relay of one connection through the proxy.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::sync::watch::Receiver;
use tokio::time::timeout;

use super::{Limit, Mode, Shared};

/// Bytes held per direction while stalled; the rest waits in the kernel's buffers.
const CHUNK_BYTES: usize = 16 * 1024;

/// End of a connection.
enum End {
    /// Both sides have closed.
    Closed,
    Cut,
}

/// Relays bytes in both directions until both sides have closed or the connection is cut.
pub(super) async fn relay(mut client: TcpStream, shared: Arc<Shared>, mut cut: Receiver<u64>) {
    // Without this, the kernel delays a second reply until the client has acknowledged the first, which takes 40 ms.
    // Fails only if the client has already disconnected.
    let _ = client.set_nodelay(true);
    let Some(mut server) = (tokio::select! {
        _ = cut.changed() => None,
        server = connect(&shared) => server.ok(),
    }) else {
        // The client sees an unreachable server as a reset.
        let _ = client.set_zero_linger();
        return;
    };
    let relay = Relay { shared: &shared, cut: cut.clone() };
    let end = {
        let (from_client, to_client) = client.split();
        let (from_server, to_server) = server.split();
        let both = async {
            tokio::try_join!(relay.requests(from_client, to_server), relay.replies(from_server, to_client))
        };
        tokio::select! {
            _ = cut.changed() => End::Cut,
            ended = both => ended.map_or(End::Cut, |_| End::Closed),
        }
    };
    if let End::Cut = end {
        // With `SO_LINGER` 0, closing resets. Fails only if the peer has already reset the connection.
        let _ = client.set_zero_linger();
        let _ = server.set_zero_linger();
    }
}

/// Connects to the server once the mode lets connections pass.
async fn connect(shared: &Shared) -> io::Result<TcpStream> {
    wait_released(shared).await;
    let server = TcpStream::connect(shared.upstream).await?;
    server.set_nodelay(true)?;
    Ok(server)
}

/// State that both directions share.
struct Relay<'a> {
    shared: &'a Shared,
    cut: Receiver<u64>,
}

impl Relay<'_> {
    async fn requests(&self, mut from: ReadHalf<'_>, mut to: WriteHalf<'_>) -> io::Result<()> {
        let mut chunk = vec![0; CHUNK_BYTES];
        loop {
            let length = from.read(&mut chunk).await?;
            wait_released(self.shared).await;
            if length == 0 {
                return to.shutdown().await;
            }
            self.pass(&mut to, &chunk[..length], &self.shared.bytes_to_server).await?;
        }
    }

    async fn replies(&self, mut from: ReadHalf<'_>, mut to: WriteHalf<'_>) -> io::Result<()> {
        let mut chunk = vec![0; CHUNK_BYTES];
        let mut limit = None;
        loop {
            let length = from.read(&mut chunk).await?;
            wait_replies_released(self.shared).await;
            if length == 0 {
                return to.shutdown().await;
            }
            // The first connection with a reply takes the limit.
            limit = limit.or_else(|| self.shared.reply_limit().take());
            let passing = limit.map_or(length, |limit: Limit| limit.bytes.min(length));
            self.pass(&mut to, &chunk[..passing], &self.shared.bytes_to_client).await?;
            match &mut limit {
                Some(limit) if limit.bytes > passing => limit.bytes -= passing,
                Some(limit) if limit.is_reset => return Err(io::ErrorKind::ConnectionReset.into()),
                Some(_) => return to.shutdown().await,
                None => {}
            }
        }
    }

    async fn pass(&self, to: &mut WriteHalf<'_>, bytes: &[u8], counter: &AtomicU64) -> io::Result<()> {
        let mut rest = bytes;
        while !rest.is_empty() {
            let mode = *self.shared.mode.borrow();
            let (passing, held) = match mode {
                Mode::Trickle(_) => rest.split_at(1),
                _ => (rest, &[][..]),
            };
            // The task may read bytes after the cut but before it is notified of it.
            if self.cut.has_changed().unwrap_or(true) {
                return Err(io::ErrorKind::ConnectionReset.into());
            }
            // Counts before writing, so that a receiver of the bytes always sees them counted.
            counter.fetch_add(passing.len() as u64, Ordering::Relaxed);
            to.write_all(passing).await?;
            if let Mode::Trickle(pause) = mode {
                mode_stays(self.shared, mode, pause).await;
                wait_released(self.shared).await;
            }
            rest = held;
        }
        Ok(())
    }
}

/// Waits while the proxy stalls or delays.
async fn wait_released(shared: &Shared) {
    loop {
        let mode = *shared.mode.borrow();
        match mode {
            // Fails only if the sender is dropped, and `shared` holds it.
            Mode::Stall => drop(shared.mode.subscribe().wait_for(|mode| *mode != Mode::Stall).await),
            Mode::Slow(delay) if !mode_stays(shared, mode, delay).await => {}
            _ => return,
        }
    }
}

/// Like [`wait_released`], for replies: also waits while the proxy mutes the server.
async fn wait_replies_released(shared: &Shared) {
    loop {
        wait_released(shared).await;
        if *shared.mode.borrow() != Mode::Mute {
            return;
        }
        drop(shared.mode.subscribe().wait_for(|mode| *mode != Mode::Mute).await);
    }
}

/// Waits until `pause` is over or the mode changes, so that a delay ends with its mode. Returns whether the mode is
/// unchanged.
async fn mode_stays(shared: &Shared, mode: Mode, pause: Duration) -> bool {
    timeout(pause, shared.mode.subscribe().wait_for(|now| *now != mode)).await.is_err()
}
