//! Minimal blocking PostgreSQL client: one query, its rows.

use std::io::{self, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// Longer than any healthy server takes. A stopped server fails the test instead of hanging it.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Version 3.0 of the protocol.
const PROTOCOL: u32 = 3 << 16;

/// Values as text; `None` is `NULL`.
pub type Rows = Vec<Vec<Option<String>>>;

/// Connection as the superuser, without a password.
#[derive(Debug)]
pub struct PgSession {
    stream: BufReader<TcpStream>,
}

impl PgSession {
    /// Connects to the database `postgres`, directly or through a proxy. Errors are text, as for [`sql`](Self::sql).
    pub fn open(address: SocketAddr) -> Result<Self, String> {
        let mut session = Self { stream: connect(address).map_err(|error| error.to_string())? };
        let body = [&PROTOCOL.to_be_bytes()[..], b"user\0postgres\0database\0postgres\0\0"].concat();
        let mut startup = (body.len() as u32 + 4).to_be_bytes().to_vec();
        startup.extend(body);
        session.request(&startup)?;
        Ok(session)
    }

    /// Executes one or more statements and returns the rows of all. Errors are text: `ERROR 23505: duplicate key …`
    /// from the server, or that of a broken connection.
    pub fn sql(&mut self, text: &str) -> Result<Rows, String> {
        let mut query = vec![b'Q'];
        query.extend((text.len() as u32 + 5).to_be_bytes());
        query.extend(text.as_bytes());
        query.push(0);
        self.request(&query)
    }

    fn request(&mut self, message: &[u8]) -> Result<Rows, String> {
        self.stream.get_mut().write_all(message).map_err(|error| error.to_string())?;
        let mut rows = Rows::new();
        let mut outcome = Ok(());
        loop {
            let (kind, body) = match self.read() {
                Ok(message) => message,
                // The server's reason for closing is more useful than the I/O error.
                Err(error) => return Err(outcome.err().unwrap_or_else(|| error.to_string())),
            };
            match kind {
                b'D' => rows.push(row(&body).ok_or("not a row")?),
                b'E' => outcome = Err(error(&body)),
                b'R' if body != [0; 4] => return Err("the server requires a password".to_owned()),
                b'G' | b'H' | b'W' => return Err("COPY is not supported".to_owned()),
                b'Z' => return outcome.map(|()| rows),
                _ => {}
            }
        }
    }

    fn read(&mut self) -> io::Result<(u8, Vec<u8>)> {
        let mut head = [0; 5];
        self.stream.read_exact(&mut head)?;
        let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]);
        let mut body = vec![0; (length as usize).saturating_sub(4)];
        self.stream.read_exact(&mut body)?;
        Ok((head[0], body))
    }
}

fn connect(address: SocketAddr) -> io::Result<BufReader<TcpStream>> {
    let stream = TcpStream::connect_timeout(&address, TIMEOUT)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    stream.set_nodelay(true)?;
    Ok(BufReader::new(stream))
}

fn row(body: &[u8]) -> Option<Vec<Option<String>>> {
    let (count, mut rest) = body.split_first_chunk()?;
    let mut values = Vec::new();
    for _ in 0..u16::from_be_bytes(*count) {
        let (length, after) = rest.split_first_chunk()?;
        // Negative for `NULL`, which has no bytes.
        let length = usize::try_from(i32::from_be_bytes(*length)).ok();
        let (value, after) = after.split_at_checked(length.unwrap_or(0))?;
        values.push(length.map(|_| String::from_utf8_lossy(value).into_owned()));
        rest = after;
    }
    Some(values)
}

/// Formats an error message, whose fields each begin with a letter.
fn error(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(body);
    let field = |letter| text.split('\0').find_map(|field| field.strip_prefix(letter)).unwrap_or("?");
    format!("{} {}: {}", field('S'), field('C'), field('M'))
}
