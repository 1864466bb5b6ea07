//! A network between client and server that fails when a test says so.

mod carry;

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinSet;

/// A TCP proxy that can stall, mute, delay, trickle, refuse and cut.
///
/// It runs on a thread of its own, so that tests may block, and may pause the time of their runtime. All switches work
/// at once and at any moment, from any thread.
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
    Refuse,
    /// The proxy itself is gone.
    Closed,
}

/// So many bytes, and how the connection ends then.
#[derive(Clone, Copy, Debug)]
struct Limit {
    bytes: usize,
    is_reset: bool,
}

#[derive(Debug)]
struct Shared {
    upstream: SocketAddr,
    mode: watch::Sender<Mode>,
    /// How often everything has been cut; connections die when it changes.
    cut: watch::Sender<u64>,
    /// What of a reply shall still pass on the connection that next has one.
    reply_limit: Mutex<Option<Limit>>,
    connections: AtomicU64,
    bytes_to_server: AtomicU64,
    bytes_to_client: AtomicU64,
}

impl FaultProxy {
    /// Listens on a free port of 127.0.0.1 and passes everything on to `upstream`.
    pub fn start(upstream: SocketAddr) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port is free");
        listener.set_nonblocking(true).expect("a listener can be asked without waiting");
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

    /// Where clients connect.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// `redis://127.0.0.1:PORT`.
    pub fn url(&self) -> String {
        format!("redis://{}", self.address)
    }

    /// Passes everything on, as at the start: no reply is cut any more. What was held while stalled is passed on first.
    pub fn pass(&self) {
        *self.shared.reply_limit() = None;
        self.shared.mode.send_replace(Mode::Pass);
    }

    /// Accepts connections and bytes but passes nothing on in either direction, until [`pass`](Self::pass).
    ///
    /// Like a network that is slow and not one that loses: a request held here reaches the server later, even if the
    /// client has given up.
    pub fn stall(&self) {
        self.shared.mode.send_replace(Mode::Stall);
    }

    /// Passes requests on but no replies, until [`pass`](Self::pass).
    pub fn mute(&self) {
        self.shared.mode.send_replace(Mode::Mute);
    }

    /// Holds each chunk of bytes for so long before it is passed on, one after the other, in both directions, and each
    /// new connection too, until [`pass`](Self::pass).
    pub fn slow(&self, delay: Duration) {
        self.shared.mode.send_replace(Mode::Slow(delay));
    }

    /// Passes one byte at a time in each direction, with a pause after each, until [`pass`](Self::pass).
    pub fn trickle(&self, pause: Duration) {
        self.shared.mode.send_replace(Mode::Trickle(pause));
    }

    /// Closes new connections at once, until [`pass`](Self::pass). Those that exist go on.
    pub fn refuse(&self) {
        self.shared.mode.send_replace(Mode::Refuse);
    }

    /// Resets all connections that have been accepted (see [`connections`](Self::connections)), on both sides. Nothing
    /// sent on them afterwards is passed on. New ones are welcome.
    pub fn cut(&self) {
        self.shared.cut.send_modify(|times| *times += 1);
    }

    /// Passes the first `bytes` bytes of the next reply, or replies, and then resets that connection: the server has
    /// executed what the client never hears of. Happens once, on the connection that next has a reply.
    pub fn cut_reply_after(&self, bytes: usize) {
        *self.shared.reply_limit() = Some(Limit { bytes, is_reset: true });
    }

    /// The same with an orderly end in place of the reset: the client is sure to read those bytes, also if it is still
    /// sending meanwhile. What it sends is passed on.
    pub fn end_reply_after(&self, bytes: usize) {
        *self.shared.reply_limit() = Some(Limit { bytes, is_reset: false });
    }

    /// Resets the connection that next has a reply, and passes nothing of it.
    pub fn cut_next_reply(&self) {
        self.cut_reply_after(0);
    }

    /// How many connections clients have made, refused ones included.
    pub fn connections(&self) -> u64 {
        self.shared.connections.load(Ordering::Relaxed)
    }

    /// How many bytes were passed on to the server.
    pub fn bytes_to_server(&self) -> u64 {
        self.shared.bytes_to_server.load(Ordering::Relaxed)
    }

    /// How many bytes were passed on to clients.
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

/// Runs until the proxy is dropped; connections end with it.
async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    let Ok(listener) = tokio::net::TcpListener::from_std(listener) else { return };
    let mut mode = shared.mode.subscribe();
    let mut carried = JoinSet::new();
    loop {
        tokio::select! {
            _ = mode.wait_for(|mode| *mode == Mode::Closed) => return,
            // The set would otherwise grow with each connection that has ended.
            Some(_) = carried.join_next() => {}
            accepted = listener.accept() => {
                let Ok((client, _)) = accepted else { continue };
                // Before it is counted: who has seen the count can cut it.
                let cut = shared.cut.subscribe();
                shared.connections.fetch_add(1, Ordering::Relaxed);
                if *shared.mode.borrow() != Mode::Refuse {
                    carried.spawn(carry::carry(client, Arc::clone(&shared), cut));
                }
            }
        }
    }
}
