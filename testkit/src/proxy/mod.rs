//! Network with faults between client and server.

mod relay;

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinSet;

/// TCP proxy that can stall, mute, delay, trickle, and close connections.
///
/// It runs on its own thread, so a test may block, or pause the time of its runtime. All switches take effect
/// immediately and work from any thread.
///
/// ```
/// use slidegate_testkit::{Connection, FaultProxy, Flavour, Server};
///
/// let server = Server::start(Flavour::Redis);
/// let proxy = FaultProxy::start(server.address());
/// let mut connection = Connection::open(proxy.address()).unwrap();
/// proxy.cut_next_reply();
/// assert!(connection.command(&["INCR", "count"]).is_err());
/// assert_eq!(server.command(&["GET", "count"]).int(), 1);
/// ```
#[derive(Debug)]
pub struct FaultProxy {
    address: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Pass,
    Stall,
    Mute,
    Slow(Duration),
    Trickle(Duration),
    RefuseConnections,
    /// The proxy has been dropped.
    Closed,
}

/// Bytes that still pass on a connection, and how it ends after them.
#[derive(Clone, Copy, Debug)]
struct Limit {
    bytes: usize,
    is_reset: bool,
}

#[derive(Debug)]
struct Shared {
    upstream: SocketAddr,
    mode: watch::Sender<Mode>,
    /// Number of cuts. A change resets all connections.
    cut: watch::Sender<u64>,
    /// Limit for the next connection that has a reply.
    reply_limit: Mutex<Option<Limit>>,
    connections: AtomicU64,
    bytes_to_server: AtomicU64,
    bytes_to_client: AtomicU64,
}

impl FaultProxy {
    /// Listens on a free port of 127.0.0.1 and relays everything to `upstream`.
    pub fn start(upstream: SocketAddr) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port is free");
        listener.set_nonblocking(true).expect("a listener can be non-blocking");
        let address = listener.local_addr().expect("a listener has an address");
        let shared = Arc::new(Shared {
            upstream,
            mode: watch::Sender::new(Mode::Pass),
            cut: watch::Sender::new(0),
            reply_limit: Mutex::default(),
            connections: AtomicU64::new(0),
            bytes_to_server: AtomicU64::new(0),
            bytes_to_client: AtomicU64::new(0),
        });
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let accepting = accept(listener, Arc::clone(&shared));
        std::thread::spawn(move || runtime.block_on(accepting));
        Self { address, shared }
    }

    /// Address for clients.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// URL: `redis://127.0.0.1:PORT`.
    pub fn url(&self) -> String {
        format!("redis://{}", self.address)
    }

    /// Relays everything, as at the start, and cancels a pending cut of a reply. Bytes held while stalled pass first.
    pub fn pass(&self) {
        *self.shared.reply_limit() = None;
        self.shared.mode.send_replace(Mode::Pass);
    }

    /// Accepts connections and bytes but holds them in both directions, until [`pass`](Self::pass).
    ///
    /// Simulates a slow network, not a lossy one: a held request reaches the server later, even if the client has timed
    /// out.
    pub fn stall(&self) {
        self.shared.mode.send_replace(Mode::Stall);
    }

    /// Relays requests but holds replies, until [`pass`](Self::pass).
    pub fn mute(&self) {
        self.shared.mode.send_replace(Mode::Mute);
    }

    /// Delays each chunk of bytes in both directions, one after the other, and each new connection, until
    /// [`pass`](Self::pass).
    pub fn slow(&self, delay: Duration) {
        self.shared.mode.send_replace(Mode::Slow(delay));
    }

    /// Relays one byte at a time in each direction, with a pause after each, until [`pass`](Self::pass).
    pub fn trickle(&self, pause: Duration) {
        self.shared.mode.send_replace(Mode::Trickle(pause));
    }

    /// Closes new connections immediately, until [`pass`](Self::pass). Existing connections continue.
    pub fn refuse_connections(&self) {
        self.shared.mode.send_replace(Mode::RefuseConnections);
    }

    /// Resets all accepted connections (see [`connections`](Self::connections)) on both sides. Later bytes on them are
    /// dropped. New connections work.
    pub fn cut(&self) {
        self.shared.cut.send_modify(|times| *times += 1);
    }

    /// Relays the first `bytes` bytes of the next reply or replies, then resets that connection. The server has
    /// executed a request whose reply the client never receives. Applies once, to the next connection with a reply.
    pub fn cut_reply_after(&self, bytes: usize) {
        *self.shared.reply_limit() = Some(Limit { bytes, is_reset: true });
    }

    /// Like [`cut_reply_after`](Self::cut_reply_after), with an orderly end instead of a reset. The client reads those
    /// bytes for certain, even while it still sends. Its requests are relayed.
    pub fn end_reply_after(&self, bytes: usize) {
        *self.shared.reply_limit() = Some(Limit { bytes, is_reset: false });
    }

    /// Resets the next connection that has a reply, before the first byte of the reply.
    pub fn cut_next_reply(&self) {
        self.cut_reply_after(0);
    }

    /// Number of connections from clients, including those closed at once.
    pub fn connections(&self) -> u64 {
        self.shared.connections.load(Ordering::Relaxed)
    }

    /// Number of bytes relayed to the server.
    pub fn bytes_to_server(&self) -> u64 {
        self.shared.bytes_to_server.load(Ordering::Relaxed)
    }

    /// Number of bytes relayed to clients.
    pub fn bytes_to_client(&self) -> u64 {
        self.shared.bytes_to_client.load(Ordering::Relaxed)
    }
}

impl Drop for FaultProxy {
    fn drop(&mut self) {
        self.shared.mode.send_replace(Mode::Closed);
    }
}

impl Shared {
    fn reply_limit(&self) -> MutexGuard<'_, Option<Limit>> {
        self.reply_limit.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Accepts connections until the proxy is dropped. The connections end with it.
async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    let Ok(listener) = tokio::net::TcpListener::from_std(listener) else { return };
    let mut mode = shared.mode.subscribe();
    let mut relays = JoinSet::new();
    loop {
        tokio::select! {
            _ = mode.wait_for(|mode| *mode == Mode::Closed) => return,
            // Removes ended connections; the set would grow without bound.
            Some(_) = relays.join_next() => {}
            accepted = listener.accept() => {
                let Ok((client, _)) = accepted else { continue };
                // Subscribes before counting, so that a cut reaches every counted connection.
                let cut = shared.cut.subscribe();
                shared.connections.fetch_add(1, Ordering::Relaxed);
                if *shared.mode.borrow() != Mode::RefuseConnections {
                    relays.spawn(relay::relay(client, Arc::clone(&shared), cut));
                }
            }
        }
    }
}
