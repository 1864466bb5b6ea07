//! An HTTP/2 client with full control over frames and windows, to act as a hostile client.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

pub(super) const DATA: u8 = 0;
pub(super) const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
pub(super) const PING: u8 = 6;
pub(super) const GO_AWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
/// `ACK` on SETTINGS and PING, `END_STREAM` on HEADERS and DATA.
const ACK_OR_END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

#[derive(Debug)]
pub(super) struct Frame {
    pub(super) kind: u8,
    flags: u8,
    pub(super) stream: u32,
    pub(super) payload: Vec<u8>,
}

impl Frame {
    pub(super) fn is_end_of_stream(&self) -> bool {
        [DATA, HEADERS].contains(&self.kind) && self.flags & ACK_OR_END_STREAM != 0
    }

    pub(super) fn is_ping_ack(&self) -> bool {
        self.kind == PING && self.flags & ACK_OR_END_STREAM != 0
    }
}

pub(super) struct Client(TcpStream);

impl Client {
    /// Connects with an initial stream window of `window` bytes.
    pub(super) fn connect(address: SocketAddr, window: u32) -> Self {
        let mut client = Self(TcpStream::connect(address).unwrap());
        client.0.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").unwrap();
        client.set_window(window);
        client
    }

    pub(super) fn set_window(&mut self, window: u32) {
        self.send(SETTINGS, 0, 0, &[&[0, 4][..], &window.to_be_bytes()].concat());
    }

    /// Opens the window of a stream, or of the connection (stream 0), by `bytes`.
    pub(super) fn add_window(&mut self, stream: u32, bytes: u32) {
        self.send(WINDOW_UPDATE, 0, stream, &bytes.to_be_bytes());
    }

    pub(super) fn ping(&mut self) {
        self.send(PING, 0, 0, &[0; 8]);
    }

    /// Sends the headers of a POST request without a body.
    pub(super) fn send_headers(&mut self, stream: u32, path: &str) {
        // HPACK: `:method: POST`, `:scheme: http`, `:path` and `:authority: a`.
        let length = u8::try_from(path.len()).unwrap();
        let head = [&[0x83, 0x86, 0x04, length][..], path.as_bytes(), &[0x01, 1, b'a']].concat();
        self.send(HEADERS, END_HEADERS, stream, &head);
    }

    pub(super) fn send_request(&mut self, stream: u32, path: &str, body: &str) {
        self.send_headers(stream, path);
        let pieces: Vec<_> = body.as_bytes().chunks(16 << 10).collect();
        for (index, piece) in pieces.iter().enumerate() {
            let is_last = index + 1 == pieces.len();
            self.send(DATA, if is_last { ACK_OR_END_STREAM } else { 0 }, stream, piece);
        }
    }

    /// Ignores write errors: a closed connection shows at the next read.
    fn send(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        let head = [&length[1..], &[kind, flags], &stream.to_be_bytes()].concat();
        let _ = self.0.write_all(&[&head, payload].concat());
    }

    /// Reads the next frame, or `None` if the connection is closed. Acknowledges SETTINGS and PING.
    pub(super) fn next_frame(&mut self) -> Option<Frame> {
        let mut head = [0; 9];
        self.0.read_exact(&mut head).ok()?;
        let [a, b, c, kind, flags, stream @ ..] = head;
        let mut payload = vec![0; u32::from_be_bytes([0, a, b, c]) as usize];
        self.0.read_exact(&mut payload).ok()?;
        if [SETTINGS, PING].contains(&kind) && flags & ACK_OR_END_STREAM == 0 {
            let echoed = if kind == PING { &payload[..] } else { &[] };
            self.send(kind, ACK_OR_END_STREAM, 0, echoed);
        }
        Some(Frame { kind, flags, stream: u32::from_be_bytes(stream), payload })
    }
}
