//! Minimal blocking RESP client: one request, one reply.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// Longer than any healthy server takes. A stopped server fails the test instead of hanging it.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Reply of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// A status such as `OK`.
    Simple(String),
    /// Any bytes.
    Bulk(Vec<u8>),
    /// A number.
    Int(i64),
    /// Nested replies.
    Array(Vec<Reply>),
    /// A missing value.
    Nil,
    /// An error that begins with its code.
    Error(String),
}

impl Reply {
    /// Returns a status or UTF-8 bytes. Panics for any other reply.
    #[track_caller]
    pub fn text(&self) -> String {
        match self {
            Self::Simple(text) => text.clone(),
            Self::Bulk(bytes) => String::from_utf8(bytes.clone()).expect("the reply is text"),
            other => panic!("not text: {other:?}"),
        }
    }

    /// Returns a number, or text that contains one. Panics for any other reply.
    #[track_caller]
    pub fn int(&self) -> i64 {
        match self {
            Self::Int(number) => *number,
            other => other.text().parse().unwrap_or_else(|error| panic!("{error}: {other:?}")),
        }
    }

    /// Returns nested replies. Panics for any other reply.
    #[track_caller]
    pub fn array(self) -> Vec<Reply> {
        match self {
            Self::Array(replies) => replies,
            other => panic!("not an array: {other:?}"),
        }
    }

    /// Panics if the reply is not `OK`.
    #[track_caller]
    pub fn ok(&self) {
        assert!(matches!(self, Self::Simple(status) if status == "OK"), "not OK: {self:?}");
    }
}

/// A connection to a server.
#[derive(Debug)]
pub struct Connection {
    stream: BufReader<TcpStream>,
}

impl Connection {
    /// Connects to a server.
    pub fn open(address: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect_timeout(&address, TIMEOUT)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.set_write_timeout(Some(TIMEOUT))?;
        stream.set_nodelay(true)?;
        Ok(Self { stream: BufReader::new(stream) })
    }

    /// Sends a command and waits for its reply. `Err` is a broken connection; an error of the server is a
    /// [`Reply::Error`].
    pub fn command<A: AsRef<[u8]>>(&mut self, args: &[A]) -> io::Result<Reply> {
        let mut request = format!("*{}\r\n", args.len()).into_bytes();
        for arg in args {
            let arg = arg.as_ref();
            request.extend_from_slice(format!("${}\r\n", arg.len()).as_bytes());
            request.extend_from_slice(arg);
            request.extend_from_slice(b"\r\n");
        }
        self.stream.get_mut().write_all(&request)?;
        self.read()
    }

    fn read(&mut self) -> io::Result<Reply> {
        let line = self.line()?;
        let Some(kind) = line.chars().next() else { return Err(malformed(&line)) };
        let rest = &line[kind.len_utf8()..];
        Ok(match kind {
            '+' => Reply::Simple(rest.to_owned()),
            '-' => Reply::Error(rest.to_owned()),
            ':' => Reply::Int(rest.parse().map_err(|_| malformed(&line))?),
            '$' | '*' if rest == "-1" => Reply::Nil,
            '$' => Reply::Bulk(self.bytes(rest.parse().map_err(|_| malformed(&line))?)?),
            '*' => {
                let count: usize = rest.parse().map_err(|_| malformed(&line))?;
                Reply::Array((0..count).map(|_| self.read()).collect::<io::Result<_>>()?)
            }
            _ => return Err(malformed(&line)),
        })
    }

    fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        self.stream.read_line(&mut line)?;
        match line.strip_suffix("\r\n") {
            Some(line) => Ok(line.to_owned()),
            None => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    fn bytes(&mut self, length: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; length + 2];
        self.stream.read_exact(&mut bytes)?;
        bytes.truncate(length);
        Ok(bytes)
    }
}

fn malformed(line: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("malformed reply: {line:?}"))
}
