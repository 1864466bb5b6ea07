//! Many other clients of the server, which reconnect at once after each disconnect.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use slidegate::{Clock, SystemClock};
use slidegate_testkit::until;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use crate::backend::Backend;

/// Pause of a rejected client before it reconnects.
const PAUSE_MS: u64 = 50;

/// The clients run on a separate thread, as if on other machines.
pub(crate) struct Herd {
    clients: usize,
    /// Number of accepted connections.
    connections: Arc<AtomicUsize>,
    /// Stops the clients when dropped.
    _end: oneshot::Sender<()>,
}

impl Herd {
    pub(crate) fn connect<B: Backend>(address: SocketAddr, clients: usize) -> Self {
        let connections = Arc::new(AtomicUsize::new(0));
        let (end, ended) = oneshot::channel();
        let counted = Arc::clone(&connections);
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let mut tasks = JoinSet::new();
                for _ in 0..clients {
                    tasks.spawn(reconnect(address, B::HELLO, B::REJECTED, Arc::clone(&counted)));
                }
                let _: Result<(), _> = ended.await;
            });
        });
        Self { clients, connections, _end: end }
    }

    /// Waits for `each` times as many connections as there are clients.
    pub(crate) fn wait_for_connections(&self, each: usize) {
        until("all other clients are connected", || match self.connections.load(Relaxed) {
            connections if connections >= each * self.clients => Ok(()),
            connections => Err(connections.to_string()),
        });
    }
}

async fn reconnect(address: SocketAddr, hello: &[u8], unwelcome: u8, connections: Arc<AtomicUsize>) {
    loop {
        if stay_connected(address, hello, unwelcome, &connections).await.is_none() {
            SystemClock::default().sleep(PAUSE_MS).await;
        }
    }
}

/// Stays connected until the connection is cut. Returns `None` if the server rejects it.
async fn stay_connected(
    address: SocketAddr,
    hello: &[u8],
    unwelcome: u8,
    connections: &AtomicUsize,
) -> Option<()> {
    let mut stream = TcpStream::connect(address).await.ok()?;
    stream.write_all(hello).await.ok()?;
    if stream.read_u8().await.ok()? == unwelcome {
        return None;
    }
    connections.fetch_add(1, Relaxed);
    let mut rest = [0; 1024];
    while stream.read(&mut rest).await.is_ok_and(|bytes| bytes > 0) {}
    Some(())
}
