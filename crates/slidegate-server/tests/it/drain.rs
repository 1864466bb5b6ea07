//! Draining: a shutdown loses no request on keep-alive connections.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use slidegate::ManualClock;
use slidegate::store::MemoryStore;
use slidegate_config::TlsFiles;
use slidegate_server::{ListenerSettings, Tls};
use slidegate_testkit::{Authority, until};

use crate::harness::{START_MS, Server};
use crate::process::{ServeProcess, slidegate};
use crate::shutdown::until_draining;

const CONNECTIONS: usize = 48;
const ROUNDS: usize = 3;
const BODY: &str = r#"{"policy": "api", "key": "a"}"#;

fn post(lines: &str) -> String {
    format!("POST /v1/check HTTP/1.1\r\nhost: a\r\n{lines}content-length: {}\r\n\r\n{BODY}", BODY.len())
}

fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n")
}

/// Reads one response and returns whether it has `connection: close`, or `None` if the connection ends first.
fn announces_close(stream: &mut impl Read) -> Option<bool> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).ok()?;
        head.extend(byte);
    }
    let head = String::from_utf8(head).unwrap().to_lowercase();
    assert!(head.starts_with("http/1.1 200"), "{head}");
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
    let mut body = vec![0; length.parse().unwrap()];
    stream.read_exact(&mut body).ok()?;
    Some(head.contains("connection: close\r\n"))
}

/// Sends requests until a response has `connection: close`. Returns whether all requests got a response.
fn gets_all_responses(stream: &mut (impl Read + Write), request: &str, responses: &AtomicUsize) -> bool {
    loop {
        if stream.write_all(request.as_bytes()).and_then(|()| stream.flush()).is_err() {
            return false;
        }
        match announces_close(stream) {
            None => return false,
            Some(false) => drop(responses.fetch_add(1, Ordering::Relaxed)),
            Some(true) => return matches!(stream.read(&mut [0]), Ok(0)),
        }
    }
}

/// Counts the connections that lose a request while `shutdown` runs. The connections use `requests` in turn.
fn count_lost<S: Read + Write + Send>(
    connect: impl Fn() -> S,
    requests: &[String],
    shutdown: impl FnOnce(),
) -> usize {
    let responses = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..CONNECTIONS)
            .map(|number| {
                let (mut stream, responses) = (connect(), &responses);
                let request = &requests[number % requests.len()];
                scope.spawn(move || gets_all_responses(&mut stream, request, responses))
            })
            .collect();
        until("all connections are in use", || match responses.load(Ordering::Relaxed) {
            count if count >= 20 * CONNECTIONS => Ok(()),
            count => Err(count.to_string()),
        });
        shutdown();
        clients.into_iter().map(|client| usize::from(!client.join().unwrap())).sum()
    })
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

#[test]
fn shutdown_loses_no_request_on_keep_alive_connections() {
    for round in 0..ROUNDS {
        let mut server = Server::start();
        let address = server.address;
        // The fast path and hyper.
        let requests = [post(""), post("te: trailers\r\n"), get("/healthz")];
        let lost_count = count_lost(|| connect(address), &requests, || server.begin_shutdown());
        assert_eq!(lost_count, 0, "round {round}");
        server.join();
    }
}

/// Starts a server over TLS and returns it with a client configuration that trusts its authority.
fn tls_server() -> (Server, Arc<ClientConfig>) {
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::make(folder.path());
    let [cert, key]: [PathBuf; 2] = authority.signed_paths();
    let tls = Tls::load(&TlsFiles { cert, key, client_ca: None }).unwrap();
    let clock = ManualClock::at(START_MS);
    let store = MemoryStore::builder().clock(clock.clone()).build().unwrap();
    let server = Server::with_options(
        ListenerSettings { tls: Some(tls), ..ListenerSettings::default() },
        store,
        clock,
    );
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(authority.ca_pem()).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    (server, Arc::new(config.with_root_certificates(roots).with_no_client_auth()))
}

#[test]
fn shutdown_loses_no_request_over_tls() {
    for round in 0..ROUNDS {
        let (mut server, config) = tls_server();
        let address = server.address;
        let connect = || {
            let name = ServerName::try_from("localhost").unwrap();
            let connection = ClientConnection::new(Arc::clone(&config), name).unwrap();
            StreamOwned::new(connection, connect(address))
        };
        let lost_count =
            count_lost(connect, &[post(""), post("te: trailers\r\n")], || server.begin_shutdown());
        assert_eq!(lost_count, 0, "round {round}");
        server.join();
    }
}

#[test]
fn shutdown_loses_no_request_to_the_admin_api() {
    for round in 0..ROUNDS {
        let mut server = ServeProcess::start(slidegate().args(["serve", "--http", "127.0.0.1:0"]));
        let admin = server.startup_lines.iter().find_map(|line| line.strip_prefix("admin: http://")).unwrap();
        let admin: SocketAddr = admin.parse().unwrap();
        let lost_count = count_lost(|| connect(admin), &[get("/v1/changes")], || server.send_signal("TERM"));
        assert_eq!(lost_count, 0, "round {round}");
        until("the service ends", || server.try_wait().ok_or_else(String::new));
    }
}

/// Only the last response has `connection: close`, on the fast path and with hyper.
#[test]
fn shutdown_responds_to_all_pipelined_requests() {
    let chunked = "POST /v1/check HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n";
    let chunked = format!("{chunked}{:x}\r\n{BODY}\r\n0\r\n\r\n", BODY.len());
    for (first, request) in [
        (post(""), post("")),
        (post("te: trailers\r\n"), post("")),
        (post(""), post("te: trailers\r\n")),
        (get("/healthz"), get("/healthz")),
        (post(""), post("") + &get("/healthz") + &post("te: trailers\r\n")),
        (chunked, get("/healthz")),
    ] {
        let mut server = Server::start();
        let mut stream = connect(server.address);
        stream.write_all(first.as_bytes()).unwrap();
        assert_eq!(announces_close(&mut stream), Some(false));
        server.begin_shutdown();
        until_draining(&server);
        let count = 5 * request.matches("HTTP/1.1").count();
        stream.write_all(request.repeat(5).as_bytes()).unwrap();
        let seen: Vec<_> = (0..count).map(|_| announces_close(&mut stream)).collect();
        let expected: Vec<_> = (1..=count).map(|number| Some(number == count)).collect();
        assert_eq!(seen, expected, "{first} {request}");
        server.join();
    }
}

/// A request that started within the grace period gets its response after it, also on a connection that hyper has served.
#[test]
fn a_request_that_started_in_the_grace_period_gets_its_response_after_it() {
    for request in [post("te: trailers\r\n"), get("/healthz")] {
        let mut server = Server::start();
        let [mut stream, mut idle] = [(); 2].map(|()| connect(server.address));
        for stream in [&mut stream, &mut idle] {
            stream.write_all(request.as_bytes()).unwrap();
            assert_eq!(announces_close(stream), Some(false));
        }
        let (start, rest) = request.split_at(10);
        stream.write_all((request.clone() + start).as_bytes()).unwrap();
        assert_eq!(
            announces_close(&mut stream),
            Some(false),
            "the server has received the start of the next request, too"
        );
        server.begin_shutdown();
        until_draining(&server);
        server.clock.advance(1000);
        assert_eq!(idle.read(&mut [0]).unwrap(), 0, "the grace period is over");
        stream.write_all(rest.as_bytes()).unwrap();
        assert_eq!(announces_close(&mut stream), Some(true), "{request}");
        server.join();
    }
}

#[test]
fn an_unused_connection_gets_one_response() {
    for request in [post(""), get("/healthz")] {
        let mut server = Server::start();
        let mut stream = connect(server.address);
        server.begin_shutdown();
        until_draining(&server);
        stream.write_all(request.as_bytes()).unwrap();
        assert_eq!(announces_close(&mut stream), Some(true), "{request}");
        assert_eq!(stream.read(&mut [0]).unwrap(), 0);
        server.join();
    }
}

#[test]
fn an_idle_connection_is_closed_after_the_grace_period() {
    for lines in ["", "te: trailers\r\n"] {
        let mut server = Server::start();
        let [mut late, mut idle] = [(); 2].map(|()| connect(server.address));
        for stream in [&mut late, &mut idle] {
            stream.write_all(post(lines).as_bytes()).unwrap();
            assert_eq!(announces_close(stream), Some(false));
        }
        server.begin_shutdown();
        until_draining(&server);
        server.clock.advance(999);
        late.write_all(post(lines).as_bytes()).unwrap();
        assert_eq!(announces_close(&mut late), Some(true), "sent within the grace period");
        server.clock.advance(1);
        assert_eq!(idle.read(&mut [0]).unwrap(), 0);
        // A request that crosses the close sees EOF and not a reset, so the client may send it again.
        idle.write_all(post(lines).as_bytes()).unwrap();
        assert_eq!(idle.read(&mut [0]).unwrap(), 0);
        drop(idle);
        server.join();
    }
}

/// The kernel has accepted the connections and the service has not.
#[test]
fn connections_in_the_accept_queue_are_served() {
    for _ in 0..20 {
        let mut server = Server::start();
        let mut streams: Vec<_> = (0..20).map(|_| connect(server.address)).collect();
        for stream in &mut streams {
            stream.write_all(post("").as_bytes()).unwrap();
        }
        server.begin_shutdown();
        assert!(streams.iter_mut().all(|stream| announces_close(stream).is_some()));
        drop(streams);
        server.join();
    }
}

mod http2 {
    use super::*;

    const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    const DATA: u8 = 0;
    const HEADERS: u8 = 1;
    const SETTINGS: u8 = 4;
    const PING: u8 = 6;
    const GOAWAY: u8 = 7;
    const MAX_STREAM_ID: u32 = (1 << 31) - 1;

    struct Frame {
        kind: u8,
        flags: u8,
        stream: u32,
        payload: Vec<u8>,
    }

    impl Frame {
        /// Returns `None` at the end of the connection.
        fn read(from: &mut TcpStream) -> Option<Self> {
            let mut head = [0; 9];
            if from.read(&mut head[..1]).unwrap() == 0 {
                return None;
            }
            from.read_exact(&mut head[1..]).unwrap();
            let [_, a, b, kind, flags, ..] = head;
            let mut payload = vec![0; usize::from(u16::from_be_bytes([a, b]))];
            from.read_exact(&mut payload).unwrap();
            let stream = u32::from_be_bytes(head[5..].try_into().unwrap());
            Some(Self { kind, flags, stream, payload })
        }

        fn write(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
            let length = u8::try_from(payload.len()).unwrap();
            let head = [0, 0, length, kind, flags];
            [&head[..], &stream.to_be_bytes(), payload].concat()
        }

        fn is_end_of(&self, stream: u32) -> bool {
            [DATA, HEADERS].contains(&self.kind) && self.stream == stream && self.flags & 1 == 1
        }

        fn last_stream(&self) -> u32 {
            u32::from_be_bytes(self.payload[..4].try_into().unwrap())
        }
    }

    /// Encodes `GET /healthz` without the dynamic table of HPACK.
    fn request(stream: u32) -> Vec<u8> {
        let headers = [b"\x82\x86\x04\x08/healthz".as_slice(), b"\x01\x01a"].concat();
        Frame::write(HEADERS, 5, stream, &headers)
    }

    #[test]
    fn shutdown_sends_a_final_goaway_after_requests_in_flight() {
        let mut server = Server::start();
        let mut client = connect(server.address);
        client.write_all(&[PREFACE, &Frame::write(SETTINGS, 0, 0, &[]), &request(1)].concat()).unwrap();
        let next = |client: &mut TcpStream, is_wanted: &dyn Fn(&Frame) -> bool| {
            std::iter::from_fn(|| Frame::read(client)).find(|frame| is_wanted(frame)).unwrap()
        };
        next(&mut client, &|frame| frame.is_end_of(1));
        server.begin_shutdown();
        let first = next(&mut client, &|frame| frame.kind == GOAWAY);
        assert_eq!(first.last_stream(), MAX_STREAM_ID);
        let ping = next(&mut client, &|frame| frame.kind == PING && frame.flags == 0);
        // A request that crosses the first GOAWAY.
        client.write_all(&request(3)).unwrap();
        client.write_all(&Frame::write(PING, 1, 0, &ping.payload)).unwrap();
        let rest: Vec<_> = std::iter::from_fn(|| Frame::read(&mut client)).collect();
        assert!(rest.iter().any(|frame| frame.is_end_of(3)));
        let second = rest.iter().find(|frame| frame.kind == GOAWAY).unwrap();
        assert_eq!(second.last_stream(), 3);
        drop(client);
        server.join();
    }
}
