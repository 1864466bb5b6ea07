//! The protocol of Redis: a server in this process on a clock of its own, or the real binary, and clients that hide
//! nothing.

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

use slidegate::{ManualClock, MemoryStore};
use slidegate_config::Config;
use slidegate_config::{Limits, Scope, Token};
use slidegate_server::{App, Authenticator, ListenerSettings, ProtocolListener, run};
use slidegate_testkit::{Connection, Reply};
use tokio::net::TcpListener;
use tokio::sync::oneshot;

use crate::harness::{POLICIES, START_MS};
use crate::process::ServeProcess;

/// Longer than any honest answer takes.
const PATIENCE: Duration = Duration::from_secs(30);

const PASSWORD: &str = "sesame-0123456789";

/// A server in this process.
struct Resp {
    address: SocketAddr,
    clock: ManualClock,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Resp {
    fn start() -> Self {
        Self::with(Limits::default(), None)
    }

    /// For those who know the password.
    fn closed(limits: Limits) -> Self {
        let token = Token::new("app", PASSWORD, Scope::Read).unwrap();
        Self::with(limits, Some(Arc::new(Authenticator::new([token].into_iter().collect()))))
    }

    fn with(limits: Limits, passwords: Option<Arc<Authenticator>>) -> Self {
        let clock = ManualClock::at(START_MS);
        let store = MemoryStore::builder().clock(clock.clone()).build().unwrap();
        let app = Arc::new(App::new(store, &Config::parse(POLICIES).unwrap().policies));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel();
        let shutdown = async move {
            let _ = stopped.await;
        };
        let entrances = vec![ProtocolListener::resp(listener, passwords)];
        let options = ListenerSettings { limits, ..ListenerSettings::default() };
        let thread = std::thread::spawn(move || runtime.block_on(run(entrances, app, options, shutdown)));
        Self { address, clock, stop: Some(stop), thread: Some(thread) }
    }

    fn connect(&self) -> Connection {
        Connection::open(self.address).unwrap()
    }

    fn stream(&self) -> TcpStream {
        open(self.address)
    }

    /// All that is answered to these bytes, after which there is nothing more to come.
    fn answer(&self, said: impl AsRef<[u8]>) -> String {
        let mut stream = self.stream();
        stream.write_all(said.as_ref()).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    fn begin_shutdown(&mut self) {
        self.stop.take().unwrap().send(()).unwrap();
    }

    /// Waits until it has stopped.
    fn join(&mut self) {
        self.thread.take().unwrap().join().unwrap();
    }
}

fn open(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// Where the binary speaks it.
fn address_of(server: &ServeProcess) -> SocketAddr {
    let line = server.startup_lines.iter().find_map(|line| line.strip_prefix("resp: ")).unwrap();
    line.rsplit('/').next().unwrap().parse().unwrap()
}

/// A command as clients write it.
fn command(words: &[&str]) -> String {
    let head = format!("*{}\r\n", words.len());
    words.iter().fold(head, |said, word| said + &format!("${}\r\n{word}\r\n", word.len()))
}

/// The numbers of a decision.
#[track_caller]
fn five(response: Reply) -> [i64; 5] {
    let numbers: Vec<i64> = response.array().iter().map(Reply::int).collect();
    numbers.try_into().unwrap()
}
