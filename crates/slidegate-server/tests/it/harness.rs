//! A server in this process on a free port and a clock of its own, and a client that hides nothing.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::thread::JoinHandle;

use serde_json::Value;
use slidegate::{Clock, ManualClock, MemoryStore};
use slidegate_server::config::Config;
use slidegate_server::{App, Door, Entrance, run};
use tokio::net::TcpListener;
use tokio::sync::oneshot;

/// The start of a minute, so that numbers are round.
pub(crate) const START_MS: u64 = 1_800_000_000_000;

pub(crate) const POLICIES: &str = "
policies:
  api:
    quotas: [100/1m]
    tiers:
      premium: {quotas: [1000/1m]}
  login:
    quotas:
      - {limit: 2, window: 1s, name: burst}
      - {limit: 5, window: 1d, algorithm: strict-window, name: daily}
";

pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    pub(crate) clock: ManualClock,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    pub(crate) fn start() -> Self {
        let clock = ManualClock::at(START_MS);
        let store = MemoryStore::builder().clock(clock.clone()).build().unwrap();
        Self::over(store, clock)
    }

    pub(crate) fn over<C: Clock>(store: MemoryStore<C>, clock: ManualClock) -> Self {
        Self::behind(Door::default(), store, clock)
    }

    pub(crate) fn behind<C: Clock>(door: Door, store: MemoryStore<C>, clock: ManualClock) -> Self {
        Self::configured(POLICIES, door, store, clock)
    }

    /// With the policies and tokens of this file.
    pub(crate) fn of(file: &str) -> Self {
        let clock = ManualClock::at(START_MS);
        let store = MemoryStore::builder().clock(clock.clone()).build().unwrap();
        Self::configured(file, Door::default(), store, clock)
    }

    pub(crate) fn configured<C: Clock>(
        file: &str,
        door: Door,
        store: MemoryStore<C>,
        clock: ManualClock,
    ) -> Self {
        let config = Config::parse(file).unwrap();
        let app = Arc::new(App::new(store, config.policies).admitting(config.tokens));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel();
        let shutdown = async move {
            let _ = stopped.await;
        };
        let entrances = vec![Entrance::decisions(listener, &app, &door)];
        let thread = std::thread::spawn(move || runtime.block_on(run(entrances, app, door, shutdown)));
        Self { address, clock, stop: Some(stop), thread: Some(thread) }
    }

    pub(crate) fn post(&self, path: &str, body: impl AsRef<[u8]>) -> Reply {
        request(self.address, "POST", path, body.as_ref())
    }

    pub(crate) fn check(&self, body: impl AsRef<[u8]>) -> Reply {
        self.post("/v1/check", body)
    }

    pub(crate) fn ask_to_stop(&mut self) {
        self.stop.take().unwrap().send(()).unwrap();
    }

    /// Waits until it has stopped.
    pub(crate) fn join(&mut self) {
        self.thread.take().unwrap().join().unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Its thread ends by itself; joining here would hide a test's failure behind a wait.
        drop(self.stop.take());
    }
}

#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: String,
}

impl Reply {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(header, _)| header == name).map(|(_, value)| value.as_str())
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// The body of an answer that must be a decision.
    pub(crate) fn decision(&self) -> Value {
        assert_eq!(self.status, 200, "{self:?}");
        self.json()
    }
}

pub(crate) fn request(address: SocketAddr, method: &str, path: &str, body: &[u8]) -> Reply {
    request_with(address, method, path, "", body)
}

/// With more lines in its head, each with its end.
pub(crate) fn request_with(address: SocketAddr, method: &str, path: &str, lines: &str, body: &[u8]) -> Reply {
    let mut stream = TcpStream::connect(address).unwrap();
    let length = body.len();
    // Decisions are asked for plainly, with nothing about the connection in the head, as most ask for them.
    let is_plain = method == "POST" && path.starts_with("/v1/");
    let close = if is_plain { "" } else { "connection: close\r\n" };
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: {address}\r\n{close}{lines}content-length: {length}\r\n\r\n"
    );
    stream.write_all(&[head.as_bytes(), body].concat()).unwrap();
    if is_plain { one(&mut stream) } else { reply(&mut stream) }
}

/// Reads one answer, and no byte more.
pub(crate) fn one(stream: &mut TcpStream) -> Reply {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        head.extend(byte);
    }
    let head = String::from_utf8(head).unwrap();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    let mut body = vec![0; length.unwrap_or_else(|| panic!("no length: {head}")).parse().unwrap()];
    stream.read_exact(&mut body).unwrap();
    parse(&(head + str::from_utf8(&body).unwrap()))
}

/// Reads an answer after which the server closes the connection.
pub(crate) fn reply(stream: &mut TcpStream) -> Reply {
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    parse(&text)
}

fn parse(text: &str) -> Reply {
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer: {text:?}"));
    let mut lines = head.lines();
    let status = lines.next().and_then(|line| line.split(' ').nth(1)).unwrap().parse().unwrap();
    let header = |line: &str| line.split_once(": ").map(|(name, value)| (name.to_owned(), value.to_owned()));
    Reply { status, headers: lines.filter_map(header).collect(), body: body.to_owned() }
}
