//! The Redis protocol: a server in the test process with a manual clock, or the real binary, and clients that expose
//! raw replies.

mod charge_and_block;
mod clients;
mod commands;
mod connections;
mod corpus;
mod forget;
mod gcra;
mod grammar;
mod handshake;
mod keys;
mod shared_store;
mod throttlecrab;

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use slidegate::ManualClock;
use slidegate::store::MemoryStore;
use slidegate_config::{Config, Limits, Scope, Token};
use slidegate_engine::{Authenticator, Engine};
use slidegate_server::{ListenerSettings, ProtocolListener, run};
use slidegate_testkit::{Connection, Reply};
use tokio::net::TcpListener;
use tokio::sync::oneshot;

use crate::harness::{POLICIES, START_MS};
use crate::process::ServeProcess;

/// Longer than any reply of a working server takes.
const IO_TIMEOUT: Duration = Duration::from_secs(30);

const PASSWORD: &str = "sesame-0123456789";

/// A server in the test process.
struct RespServer {
    address: SocketAddr,
    clock: ManualClock,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl RespServer {
    fn start() -> Self {
        Self::with_limits_and_passwords(Limits::default(), None)
    }

    /// Starts a server that requires `PASSWORD`.
    fn with_password(limits: Limits) -> Self {
        let token = Token::new("app", PASSWORD, Scope::Read).unwrap();
        Self::with_limits_and_passwords(
            limits,
            Some(Arc::new(Authenticator::new([token].into_iter().collect()))),
        )
    }

    fn with_limits_and_passwords(limits: Limits, passwords: Option<Arc<Authenticator>>) -> Self {
        let clock = ManualClock::at(START_MS);
        let store = MemoryStore::builder().clock(clock.clone()).build().unwrap();
        let engine = Arc::new(Engine::new(store, &Config::parse(POLICIES).unwrap().policies));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel();
        let shutdown = async move {
            let _ = stopped.await;
        };
        let listeners = vec![ProtocolListener::resp(listener, passwords)];
        let options = ListenerSettings { limits, ..ListenerSettings::default() };
        let thread = std::thread::spawn(move || runtime.block_on(run(listeners, engine, options, shutdown)));
        Self { address, clock, stop: Some(stop), thread: Some(thread) }
    }

    fn connect(&self) -> Connection {
        Connection::open(self.address).unwrap()
    }

    fn stream(&self) -> TcpStream {
        open(self.address)
    }

    /// Sends the bytes on a new connection, ends its writing half and returns all replies.
    fn replies_to(&self, sent: impl AsRef<[u8]>) -> String {
        let mut stream = self.stream();
        stream.write_all(sent.as_ref()).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let mut replies = String::new();
        stream.read_to_string(&mut replies).unwrap();
        replies
    }

    fn begin_shutdown(&mut self) {
        self.stop.take().unwrap().send(()).unwrap();
    }

    /// Waits until the server has stopped.
    fn join(&mut self) {
        self.thread.take().unwrap().join().unwrap();
    }
}

fn open(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(IO_TIMEOUT)).unwrap();
    stream.set_write_timeout(Some(IO_TIMEOUT)).unwrap();
    stream
}

/// Returns the address of the RESP listener from the startup output.
fn address_of(server: &ServeProcess) -> SocketAddr {
    let line = server.startup_lines.iter().find_map(|line| line.strip_prefix("resp: ")).unwrap();
    line.rsplit('/').next().unwrap().parse().unwrap()
}

/// Encodes a command as an array of bulk strings.
fn command(words: &[&str]) -> String {
    let head = format!("*{}\r\n", words.len());
    words.iter().fold(head, |encoded, word| encoded + &format!("${}\r\n{word}\r\n", word.len()))
}

/// Decodes a decision: an array of five integers.
#[track_caller]
fn five_integers(reply: Reply) -> [i64; 5] {
    let numbers: Vec<i64> = reply.array().iter().map(Reply::int).collect();
    numbers.try_into().unwrap()
}
