//! Many other clients of the same server, which connect anew at once whenever they are cut off.

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

/// How long those who were turned away stay away.
const PAUSE_MS: u64 = 50;

/// They live on a thread of their own, as they would on other machines.
pub(crate) struct Herd {
    clients: usize,
    /// How often any of them was let in.
    visits: Arc<AtomicUsize>,
    /// Dropped, it ends them.
    _end: oneshot::Sender<()>,
}

impl Herd {
    pub(crate) fn connect<B: Backend>(address: SocketAddr, clients: usize) -> Self {
        let visits = Arc::new(AtomicUsize::new(0));
        let (end, ended) = oneshot::channel();
        let counted = Arc::clone(&visits);
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let mut tasks = JoinSet::new();
                for _ in 0..clients {
                    tasks.spawn(live(address, B::HELLO, B::UNWELCOME, Arc::clone(&counted)));
                }
                let _: Result<(), _> = ended.await;
            });
        });
        Self { clients, visits, _end: end }
    }

    /// Waits until all have been let in so often.
    pub(crate) fn wait_for_visits(&self, each: usize) {
        until("all other clients are connected", || match self.visits.load(Relaxed) {
            visits if visits >= each * self.clients => Ok(()),
            visits => Err(visits.to_string()),
        });
    }
}

async fn live(address: SocketAddr, hello: &[u8], unwelcome: u8, visits: Arc<AtomicUsize>) {
    loop {
        if visit(address, hello, unwelcome, &visits).await.is_none() {
            SystemClock::default().sleep(PAUSE_MS).await;
        }
    }
}

/// Stays until it is cut off; `None` if it was not let in.
async fn visit(address: SocketAddr, hello: &[u8], unwelcome: u8, visits: &AtomicUsize) -> Option<()> {
    let mut stream = TcpStream::connect(address).await.ok()?;
    stream.write_all(hello).await.ok()?;
    if stream.read_u8().await.ok()? == unwelcome {
        return None;
    }
    visits.fetch_add(1, Relaxed);
    let mut rest = [0; 1024];
    while stream.read(&mut rest).await.is_ok_and(|bytes| bytes > 0) {}
    Some(())
}
