//! A server in the test process, on a free port and a manual clock, and a minimal HTTP/1.1 client.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::thread::JoinHandle;

use serde_json::Value;
use slidegate::store::MemoryStore;
use slidegate::{Clock, ManualClock};
use slidegate_config::Config;
use slidegate_engine::Engine;
use slidegate_server::{ListenerSettings, ProtocolListener, run};
use tokio::net::TcpListener;
use tokio::sync::oneshot;

/// Initial time of the manual clock: the start of a minute, so that reset times are round numbers.
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
        Self::with_store(store, clock)
    }

    pub(crate) fn with_store<C: Clock>(store: MemoryStore<C>, clock: ManualClock) -> Self {
        Self::with_options(ListenerSettings::default(), store, clock)
    }

    pub(crate) fn with_options<C: Clock>(
        options: ListenerSettings,
        store: MemoryStore<C>,
        clock: ManualClock,
    ) -> Self {
        Self::with_config_and_store(POLICIES, options, store, clock)
    }

    /// Starts with the policies and tokens of the configuration `file`.
    pub(crate) fn with_config(file: &str) -> Self {
        let clock = ManualClock::at(START_MS);
        let store = MemoryStore::builder().clock(clock.clone()).build().unwrap();
        Self::with_config_and_store(file, ListenerSettings::default(), store, clock)
    }

    pub(crate) fn with_config_and_store<C: Clock>(
        file: &str,
        options: ListenerSettings,
        store: MemoryStore<C>,
        clock: ManualClock,
    ) -> Self {
        let config = Config::parse(file).unwrap();
        let engine = Arc::new(Engine::new(store, &config.policies).with_tokens(config.tokens));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel();
        let shutdown = async move {
            let _ = stopped.await;
        };
        let listeners = vec![ProtocolListener::decisions(listener, &engine, &options)];
        let thread = std::thread::spawn(move || runtime.block_on(run(listeners, engine, options, shutdown)));
        Self { address, clock, stop: Some(stop), thread: Some(thread) }
    }

    pub(crate) fn post(&self, path: &str, body: impl AsRef<[u8]>) -> Response {
        request(self.address, "POST", path, body.as_ref())
    }

    pub(crate) fn check(&self, body: impl AsRef<[u8]>) -> Response {
        self.post("/v1/check", body)
    }

    pub(crate) fn begin_shutdown(&mut self) {
        self.stop.take().unwrap().send(()).unwrap();
    }

    /// Waits until the server has stopped.
    pub(crate) fn join(&mut self) {
        self.thread.take().unwrap().join().unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // No join: the thread ends by itself, and a join after a failed assertion could hang the test.
        drop(self.stop.take());
    }
}

#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: String,
}

impl Response {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(header, _)| header == name).map(|(_, value)| value.as_str())
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// Asserts status 200 and returns the body.
    pub(crate) fn decision(&self) -> Value {
        assert_eq!(self.status, 200, "{self:?}");
        self.json()
    }
}

pub(crate) fn request(address: SocketAddr, method: &str, path: &str, body: &[u8]) -> Response {
    request_with_headers(address, method, path, "", body)
}

/// Sends a request with the additional header lines `lines`, each ended by CRLF.
pub(crate) fn request_with_headers(
    address: SocketAddr,
    method: &str,
    path: &str,
    lines: &str,
    body: &[u8],
) -> Response {
    let mut stream = TcpStream::connect(address).unwrap();
    let length = body.len();
    // A check without a `connection` header takes the fast path of the server, as most clients' checks do.
    let is_plain = method == "POST" && path.starts_with("/v1/");
    let close = if is_plain { "" } else { "connection: close\r\n" };
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: {address}\r\n{close}{lines}content-length: {length}\r\n\r\n"
    );
    stream.write_all(&[head.as_bytes(), body].concat()).unwrap();
    if is_plain { read_response(&mut stream) } else { read_last_response(&mut stream) }
}

/// Reads exactly one response and leaves the rest of the stream unread.
pub(crate) fn read_response(stream: &mut TcpStream) -> Response {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        head.extend(byte);
    }
    let head = String::from_utf8(head).unwrap();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    let mut body = vec![0; length.unwrap_or_else(|| panic!("no content-length: {head}")).parse().unwrap()];
    stream.read_exact(&mut body).unwrap();
    parse_response(&(head + str::from_utf8(&body).unwrap()))
}

/// Reads the stream to its end and parses it as one response.
pub(crate) fn read_last_response(stream: &mut TcpStream) -> Response {
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    parse_response(&text)
}

fn parse_response(text: &str) -> Response {
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no response: {text:?}"));
    let mut lines = head.lines();
    let status = lines.next().and_then(|line| line.split(' ').nth(1)).unwrap().parse().unwrap();
    let header = |line: &str| line.split_once(": ").map(|(name, value)| (name.to_owned(), value.to_owned()));
    Response { status, headers: lines.filter_map(header).collect(), body: body.to_owned() }
}
