//! A decision asked for in the plainest way, told from its bytes.
//!
//! What clients and load tests send all day: `POST /v1/check`, HTTP/1.1, a length, a body. Whatever is in any way unlike
//! that is left to hyper, byte by byte as it came; so this need not know how HTTP is spoken, only when it is spoken plainly.

use std::mem::MaybeUninit;

use slidegate::Verb;

use crate::authenticator::Credentials;
use crate::protocols::http::verb_of;

/// The largest request that is looked at here.
pub(crate) const MAX_BYTES: usize = 16 << 10;
/// The most headers.
const MAX_HEADERS: usize = 32;
/// The longest head that is kept, for it is kept by each connection.
const MAX_KEPT_BYTES: usize = 1 << 10;
/// What all of them begin with.
const BEGIN: &[u8] = b"POST /v1/";

/// What bytes begin with.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Found<'a> {
    /// A plain request, and so many bytes of it.
    Plain(Plain<'a>, usize),
    /// It may become one.
    Half,
    /// Anything else.
    Other,
}

/// A plain request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Plain<'a> {
    pub(crate) verb: Verb,
    pub(crate) shown: Credentials<'a>,
    pub(crate) body: &'a [u8],
}

/// What looks at all that comes on one connection.
///
/// Whoever keeps a connection often sends the same head again, so the last one is kept: to see that it is the same takes a
/// tenth of the time that it takes to read it. One that shows a token is not kept.
#[derive(Debug, Default)]
pub(crate) struct Finder {
    last: Vec<u8>,
    /// What it says, if one is kept.
    known: Option<ParsedHead>,
}

impl Finder {
    /// Looks at what has come.
    pub(crate) fn find<'a>(&mut self, bytes: &'a [u8]) -> Found<'a> {
        let found = match self.known {
            Some(asked) if bytes.starts_with(&self.last) => {
                asked.with_body(bytes, self.last.len(), Credentials::default())
            }
            _ => self.look(bytes),
        };
        match found {
            Found::Half if bytes.len() >= MAX_BYTES => Found::Other,
            found => found,
        }
    }

    fn look<'a>(&mut self, bytes: &'a [u8]) -> Found<'a> {
        let length = bytes.len().min(BEGIN.len());
        if bytes[..length] != BEGIN[..length] {
            return Found::Other;
        }
        let mut headers = [const { MaybeUninit::uninit() }; MAX_HEADERS];
        let mut head = httparse::Request::new(&mut []);
        let head_bytes = match head.parse_with_uninit_headers(bytes, &mut headers) {
            Ok(httparse::Status::Complete(length)) => length,
            Ok(httparse::Status::Partial) => return Found::Half,
            Err(_) => return Found::Other,
        };
        let Some((asked, shown)) = said(&head) else { return Found::Other };
        if head_bytes <= MAX_KEPT_BYTES && shown == Credentials::default() {
            self.keep(&bytes[..head_bytes], asked);
        }
        asked.with_body(bytes, head_bytes, shown)
    }

    fn keep(&mut self, head: &[u8], asked: ParsedHead) {
        self.last.clear();
        self.last.reserve_exact(head.len());
        self.last.extend_from_slice(head);
        self.known = Some(asked);
    }
}

/// What a head asks for.
#[derive(Clone, Copy, Debug)]
struct ParsedHead {
    verb: Verb,
    body_bytes: usize,
}

impl ParsedHead {
    fn with_body<'a>(self, bytes: &'a [u8], head_bytes: usize, shown: Credentials<'a>) -> Found<'a> {
        let whole = head_bytes + self.body_bytes;
        match bytes.get(head_bytes..whole) {
            Some(body) => Found::Plain(Plain { verb: self.verb, shown, body }, whole),
            None if whole > MAX_BYTES => Found::Other,
            None => Found::Half,
        }
    }
}

/// What a head says, if it is plain: what is asked, a length, and nothing about how the connection is to go on.
fn said<'a>(head: &httparse::Request<'_, 'a>) -> Option<(ParsedHead, Credentials<'a>)> {
    let verb = head.path.and_then(verb_of).filter(|_| head.version == Some(1))?;
    let (mut body_bytes, mut shown) = (None, Credentials::default());
    for httparse::Header { name, value } in head.headers.iter() {
        // All names that matter have lengths that few others have.
        match name.len() {
            2 if name.eq_ignore_ascii_case("te") => return None,
            6 if name.eq_ignore_ascii_case("expect") => return None,
            7 if name.eq_ignore_ascii_case("upgrade") || name.eq_ignore_ascii_case("trailer") => return None,
            10 if name.eq_ignore_ascii_case("connection") && !value.eq_ignore_ascii_case(b"keep-alive") => {
                return None;
            }
            13 if name.eq_ignore_ascii_case("authorization") => shown.add_authorization(value),
            14 if name.eq_ignore_ascii_case("content-length") && body_bytes.is_some() => return None,
            14 if name.eq_ignore_ascii_case("content-length") => body_bytes = Some(number(value)?),
            17 if name.eq_ignore_ascii_case("transfer-encoding") => return None,
            17 if name.eq_ignore_ascii_case("x-slidegate-token") => shown.add_token(value),
            _ => {}
        }
    }
    body_bytes.map(|body_bytes| (ParsedHead { verb, body_bytes }, shown))
}

/// Digits alone, and not many.
fn number(value: &[u8]) -> Option<usize> {
    if !(1..=5).contains(&value.len()) {
        return None;
    }
    value
        .iter()
        .try_fold(0, |number, byte| byte.is_ascii_digit().then(|| 10 * number + usize::from(byte - b'0')))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: &str = "POST /v1/check HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\n\r\n{}";

    fn with(header: &str) -> String {
        PLAIN.replace("host: a", header)
    }

    /// As the first that comes on a connection.
    fn find(bytes: &[u8]) -> Found<'_> {
        Finder::default().find(bytes)
    }

    #[test]
    fn plain_is_told_with_its_body_and_what_is_left() {
        let two = format!("{PLAIN}POST");
        let Found::Plain(plain, length) = find(two.as_bytes()) else { panic!("not plain") };
        assert_eq!((plain.verb, plain.body, &two[length..]), (Verb::Check, &b"{}"[..], "POST"));
        let shown =
            with("Authorization: Bearer one\r\nX-Slidegate-Token: two\r\nauthorization: Bearer three");
        let Found::Plain(plain, _) = find(shown.as_bytes()) else { panic!("not plain") };
        let mut expected = Credentials::default();
        expected.add_authorization(b"Bearer one");
        expected.add_token(b"two");
        assert_eq!(plain.shown, expected);
        assert!(matches!(find(with("Connection: Keep-Alive").as_bytes()), Found::Plain(..)));
    }

    #[test]
    fn every_beginning_of_it_is_half() {
        for length in 0..PLAIN.len() {
            assert_eq!(find(&PLAIN.as_bytes()[..length]), Found::Half, "{length}");
        }
    }

    #[test]
    fn whatever_is_unusual_is_left_alone() {
        for header in [
            "Connection: close",
            "connection: keep-alive, upgrade",
            "Expect: 100-continue",
            "Transfer-Encoding: chunked",
            "content-length: 2",
            "content-length: 3",
            "Upgrade: h2c",
            "te: trailers",
            "Trailer: x",
            "no colon",
            "a\0b: c",
            " folded: x",
        ] {
            assert_eq!(find(with(header).as_bytes()), Found::Other, "{header}");
        }
        for (from, to) in [
            ("POST", "GET"),
            ("POST", "post"),
            ("HTTP/1.1", "HTTP/1.0"),
            ("/v1/check", "/v1/check?a"),
            ("/v1/check", "/v1/"),
            ("/v1/check", "http://a/v1/check"),
            ("length: 2", "length: +2"),
            ("length: 2", "length: 2, 2"),
            ("length: 2", "length:"),
            ("length: 2", "length: 99999"),
            ("length: 2", "length: 18446744073709551618"),
            ("content-length: 2", "a: b"),
            ("POST", "\r\nPOST"),
        ] {
            assert_eq!(find(PLAIN.replace(from, to).as_bytes()), Found::Other, "{from} → {to}");
        }
        let many = "a: b\r\n".repeat(MAX_HEADERS);
        assert_eq!(find(with(many.trim_end()).as_bytes()), Found::Other);
        let endless = format!("POST /v1/check HTTP/1.1\r\na: {}", "b".repeat(MAX_BYTES));
        assert_eq!(find(endless.as_bytes()), Found::Other);
    }

    /// Whatever came before, on the same connection.
    #[test]
    fn the_head_before_makes_no_difference() {
        let requests = [
            PLAIN.to_owned(),
            PLAIN.replace("check", "peek"),
            PLAIN.replace("length: 2", "length: 3"),
            PLAIN.replace("length: 2", "length: 9999"),
            PLAIN.replace("HTTP/1.1", "HTTP/1.0"),
            format!("{PLAIN}{PLAIN}"),
            PLAIN.replace("{}", "[]"),
            with("Authorization: Bearer one\r\nx-slidegate-token: two"),
            with("Authorization: Bearer two\r\nx-slidegate-token: one"),
            with("x-slidegate-token: two"),
            with("x-slidegate-token:"),
            with("connection: close"),
            with(&format!("a: {}", "b".repeat(MAX_KEPT_BYTES))),
            format!("\r\n{PLAIN}"),
        ];
        for first in &requests {
            for second in &requests {
                for length in 0..=second.len() {
                    let (mut finder, second) = (Finder::default(), &second.as_bytes()[..length]);
                    finder.find(first.as_bytes());
                    assert_eq!(finder.find(second), find(second), "{first} → {}", second.escape_ascii());
                }
            }
        }
    }

    #[test]
    fn a_head_is_kept_and_used_unless_it_is_long_or_shows_a_token() {
        let (mut finder, head) = (Finder::default(), &PLAIN.as_bytes()[..PLAIN.len() - 2]);
        let long = with(&format!("a: {}", "b".repeat(MAX_KEPT_BYTES)));
        for other in [PLAIN, &long, &with("x-slidegate-token: two"), &with("authorization: one")] {
            assert!(matches!(finder.find(other.as_bytes()), Found::Plain(..)));
            assert_eq!(finder.last, head, "after {other}");
        }
        // As nothing else could say.
        finder.known = Some(ParsedHead { verb: Verb::Reset, body_bytes: 1 });
        let expected = Plain { verb: Verb::Reset, shown: Credentials::default(), body: b"{" };
        assert_eq!(finder.find(PLAIN.as_bytes()), Found::Plain(expected, PLAIN.len() - 1));
    }
}
