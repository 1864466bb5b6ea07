//! One connection through the proxy.

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

/// No more than this is held for each direction while stalled; the rest waits in the kernel's buffers.
const CHUNK_BYTES: usize = 16 * 1024;

/// How a connection ended.
enum End {
    /// Both sides had said all they wanted.
    Closed,
    Cut,
}

/// Carries bytes both ways until either side is done or the connection is cut.
pub(super) async fn carry(mut client: TcpStream, shared: Arc<Shared>, mut cut: Receiver<u64>) {
    // Else the kernel holds back a second reply until the client has acknowledged the first, which takes 40 ms.
    // Fails only if the client has gone already.
    let _ = client.set_nodelay(true);
    let Some(mut server) = (tokio::select! {
        _ = cut.changed() => None,
        server = connect(&shared) => server.ok(),
    }) else {
        // To the client, a server that cannot be reached has cut the connection.
        let _ = client.set_zero_linger();
        return;
    };
    let line = Line { shared: &shared, cut: cut.clone() };
    let end = {
        let (from_client, to_client) = client.split();
        let (from_server, to_server) = server.split();
        let both = async {
            tokio::try_join!(line.requests(from_client, to_server), line.replies(from_server, to_client))
        };
        tokio::select! {
            _ = cut.changed() => End::Cut,
            ended = both => ended.map_or(End::Cut, |_| End::Closed),
        }
    };
    if let End::Cut = end {
        // Without lingering, closing resets. Fails only if the peer has reset it already.
        let _ = client.set_zero_linger();
        let _ = server.set_zero_linger();
    }
}

/// Connects to the server as soon as anything may pass.
async fn connect(shared: &Shared) -> io::Result<TcpStream> {
    released(shared).await;
    let server = TcpStream::connect(shared.upstream).await?;
    server.set_nodelay(true)?;
    Ok(server)
}

/// What both directions share.
struct Line<'a> {
    shared: &'a Shared,
    cut: Receiver<u64>,
}

impl Line<'_> {
    async fn requests(&self, mut from: ReadHalf<'_>, mut to: WriteHalf<'_>) -> io::Result<()> {
        let mut chunk = vec![0; CHUNK_BYTES];
        loop {
            let length = from.read(&mut chunk).await?;
            released(self.shared).await;
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
            heard(self.shared).await;
            if length == 0 {
                return to.shutdown().await;
            }
            // Who has a reply first takes the limit for itself.
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

    async fn pass(&self, to: &mut WriteHalf<'_>, bytes: &[u8], counted: &AtomicU64) -> io::Result<()> {
        let mut rest = bytes;
        while !rest.is_empty() {
            let mode = *self.shared.mode.borrow();
            let (passing, later) = match mode {
                Mode::Trickle(_) => rest.split_at(1),
                _ => (rest, &[][..]),
            };
            // These bytes may have come between the cut and the moment that this task hears of it.
            if self.cut.has_changed().unwrap_or(true) {
                return Err(io::ErrorKind::ConnectionReset.into());
            }
            // Counted first: who has received them must find them counted.
            counted.fetch_add(passing.len() as u64, Ordering::Relaxed);
            to.write_all(passing).await?;
            if let Mode::Trickle(pause) = mode {
                stays(self.shared, mode, pause).await;
                released(self.shared).await;
            }
            rest = later;
        }
        Ok(())
    }
}

/// Waits for as long as the proxy stalls or delays.
async fn released(shared: &Shared) {
    loop {
        let mode = *shared.mode.borrow();
        match mode {
            // Fails only if the sender is gone, which `shared` holds.
            Mode::Stall => drop(shared.mode.subscribe().wait_for(|mode| *mode != Mode::Stall).await),
            Mode::Slow(delay) if !stays(shared, mode, delay).await => {}
            _ => return,
        }
    }
}

/// The same for replies, which are also held while the proxy mutes the server.
async fn heard(shared: &Shared) {
    loop {
        released(shared).await;
        if *shared.mode.borrow() != Mode::Mute {
            return;
        }
        drop(shared.mode.subscribe().wait_for(|mode| *mode != Mode::Mute).await);
    }
}

/// Waits until `pause` is over, or the mode is another: what was to be slow shall not be so any longer than told. Says
/// whether it has stayed the same.
async fn stays(shared: &Shared, mode: Mode, pause: Duration) -> bool {
    timeout(pause, shared.mode.subscribe().wait_for(|now| *now != mode)).await.is_err()
}
