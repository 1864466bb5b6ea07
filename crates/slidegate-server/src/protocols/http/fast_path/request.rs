//! Recognizes plain decision requests in the received bytes.
//!
//! A plain request is the form that clients send most: `POST` to a path of a decision, HTTP/1.1, a `content-length` and a
//! body. All other requests go to hyper unchanged. So this parser does not implement HTTP; it only recognizes the plain
//! form.

use std::mem::MaybeUninit;

use slidegate::Verb;
use slidegate_engine::Credentials;

use super::super::verb_of;
use crate::traces::TraceContext;

/// Maximum size of a plain request.
pub(in crate::protocols::http) const MAX_BYTES: usize = 16 << 10;
/// Maximum number of headers of a plain request.
const MAX_HEADERS: usize = 32;
/// Maximum size of a head that is cached. Each connection caches one.
const MAX_CACHED_BYTES: usize = 1 << 10;
/// Start of every plain request.
const PREFIX: &[u8] = b"POST /v1/";

/// Result of parsing the received bytes.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::protocols::http) enum Parsed<'a> {
    /// A plain request and its length in bytes.
    Plain(PlainRequest<'a>, usize),
    /// The start of a request that can still be plain.
    Incomplete,
    /// A request that is not plain.
    Other,
}

/// A plain request.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::protocols::http) struct PlainRequest<'a> {
    pub(in crate::protocols::http) verb: Verb,
    pub(in crate::protocols::http) credentials: Credentials<'a>,
    pub(in crate::protocols::http) trace: TraceContext<'a>,
    pub(in crate::protocols::http) body: &'a [u8],
}

/// Parser of the requests of one connection.
///
/// A client often repeats the same head on a connection, so the last head is cached: a comparison takes a tenth of the
/// time of parsing. A head with credentials or a trace is not cached.
#[derive(Debug, Default)]
pub(in crate::protocols::http) struct RequestParser {
    cached_head: Vec<u8>,
    /// The parsed form of `cached_head`.
    cached: Option<PlainHead>,
}

impl RequestParser {
    /// Parses the first request in `bytes`.
    pub(in crate::protocols::http) fn parse<'a>(&mut self, bytes: &'a [u8]) -> Parsed<'a> {
        let parsed = match self.cached {
            Some(head) if bytes.starts_with(&self.cached_head) => {
                head.with_body(bytes, self.cached_head.len(), RequestContext::default())
            }
            _ => self.parse_uncached(bytes),
        };
        match parsed {
            Parsed::Incomplete if bytes.len() >= MAX_BYTES => Parsed::Other,
            parsed => parsed,
        }
    }

    fn parse_uncached<'a>(&mut self, bytes: &'a [u8]) -> Parsed<'a> {
        let length = bytes.len().min(PREFIX.len());
        if bytes[..length] != PREFIX[..length] {
            return Parsed::Other;
        }
        let mut headers = [const { MaybeUninit::uninit() }; MAX_HEADERS];
        let mut head = httparse::Request::new(&mut []);
        let head_bytes = match head.parse_with_uninit_headers(bytes, &mut headers) {
            Ok(httparse::Status::Complete(length)) => length,
            Ok(httparse::Status::Partial) => return Parsed::Incomplete,
            Err(_) => return Parsed::Other,
        };
        let Some((head, context)) = plain_head(&head) else { return Parsed::Other };
        if head_bytes <= MAX_CACHED_BYTES && context == RequestContext::default() {
            self.cache(&bytes[..head_bytes], head);
        }
        head.with_body(bytes, head_bytes, context)
    }

    fn cache(&mut self, bytes: &[u8], head: PlainHead) {
        self.cached_head.clear();
        self.cached_head.reserve_exact(bytes.len());
        self.cached_head.extend_from_slice(bytes);
        self.cached = Some(head);
    }
}

/// Parts of a head that differ between the requests of a client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct RequestContext<'a> {
    credentials: Credentials<'a>,
    trace: TraceContext<'a>,
}

/// The head of a plain request, without its context.
#[derive(Clone, Copy, Debug)]
struct PlainHead {
    verb: Verb,
    body_bytes: usize,
}

impl PlainHead {
    fn with_body<'a>(self, bytes: &'a [u8], head_bytes: usize, context: RequestContext<'a>) -> Parsed<'a> {
        let RequestContext { credentials, trace } = context;
        let length = head_bytes + self.body_bytes;
        match bytes.get(head_bytes..length) {
            Some(body) => Parsed::Plain(PlainRequest { verb: self.verb, credentials, trace, body }, length),
            None if length > MAX_BYTES => Parsed::Other,
            None => Parsed::Incomplete,
        }
    }
}

/// Returns the head with its context if it is plain: a path of a decision, one `content-length`, and no header that
/// changes how the body or the connection is handled.
fn plain_head<'a>(head: &httparse::Request<'_, 'a>) -> Option<(PlainHead, RequestContext<'a>)> {
    let verb = head.path.and_then(verb_of).filter(|_| head.version == Some(1))?;
    let (mut body_bytes, mut context) = (None, RequestContext::default());
    for httparse::Header { name, value } in head.headers.iter() {
        // Few other header names have these lengths, so most names are skipped by length.
        match name.len() {
            2 if name.eq_ignore_ascii_case("te") => return None,
            6 if name.eq_ignore_ascii_case("expect") => return None,
            7 if name.eq_ignore_ascii_case("upgrade") || name.eq_ignore_ascii_case("trailer") => return None,
            10 if name.eq_ignore_ascii_case("connection") && !value.eq_ignore_ascii_case(b"keep-alive") => {
                return None;
            }
            10 if name.eq_ignore_ascii_case("tracestate") => {
                context.trace.tracestate.get_or_insert(value);
            }
            11 if name.eq_ignore_ascii_case("traceparent") => {
                context.trace.traceparent.get_or_insert(value);
            }
            13 if name.eq_ignore_ascii_case("authorization") => context.credentials.add_authorization(value),
            14 if name.eq_ignore_ascii_case("content-length") && body_bytes.is_some() => return None,
            14 if name.eq_ignore_ascii_case("content-length") => body_bytes = Some(content_length(value)?),
            17 if name.eq_ignore_ascii_case("transfer-encoding") => return None,
            17 if name.eq_ignore_ascii_case("x-slidegate-token") => context.credentials.add_token(value),
            _ => {}
        }
    }
    body_bytes.map(|body_bytes| (PlainHead { verb, body_bytes }, context))
}

/// Parses 1 to 5 decimal digits.
fn content_length(value: &[u8]) -> Option<usize> {
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

    fn with_header(header: &str) -> String {
        PLAIN.replace("host: a", header)
    }

    /// Parses the first request of a connection.
    fn parse(bytes: &[u8]) -> Parsed<'_> {
        RequestParser::default().parse(bytes)
    }

    #[test]
    fn a_plain_request_is_parsed_and_later_bytes_remain() {
        let bytes = format!("{PLAIN}POST");
        let Parsed::Plain(request, length) = parse(bytes.as_bytes()) else { panic!("not plain") };
        assert_eq!((request.verb, request.body, &bytes[length..]), (Verb::Check, &b"{}"[..], "POST"));
        let with_credentials =
            with_header("Authorization: Bearer one\r\nX-Slidegate-Token: two\r\nauthorization: Bearer three");
        let Parsed::Plain(request, _) = parse(with_credentials.as_bytes()) else { panic!("not plain") };
        let mut expected = Credentials::default();
        expected.add_authorization(b"Bearer one");
        expected.add_token(b"two");
        assert_eq!(request.credentials, expected);
        let traced = with_header("TraceParent: 00-1-2-01\r\ntracestate: a=b");
        let Parsed::Plain(request, _) = parse(traced.as_bytes()) else { panic!("not plain") };
        let trace = TraceContext { traceparent: Some(b"00-1-2-01"), tracestate: Some(b"a=b") };
        assert_eq!(request.trace, trace);
        assert!(matches!(parse(with_header("Connection: Keep-Alive").as_bytes()), Parsed::Plain(..)));
    }

    #[test]
    fn every_prefix_of_a_plain_request_is_incomplete() {
        for length in 0..PLAIN.len() {
            assert_eq!(parse(&PLAIN.as_bytes()[..length]), Parsed::Incomplete, "{length}");
        }
    }

    #[test]
    fn a_request_of_another_form_is_not_plain() {
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
            assert_eq!(parse(with_header(header).as_bytes()), Parsed::Other, "{header}");
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
            assert_eq!(parse(PLAIN.replace(from, to).as_bytes()), Parsed::Other, "{from} → {to}");
        }
        let many = "a: b\r\n".repeat(MAX_HEADERS);
        assert_eq!(parse(with_header(many.trim_end()).as_bytes()), Parsed::Other);
        let long = format!("POST /v1/check HTTP/1.1\r\na: {}", "b".repeat(MAX_BYTES));
        assert_eq!(parse(long.as_bytes()), Parsed::Other);
    }

    #[test]
    fn a_cached_head_does_not_change_the_result() {
        let requests = [
            PLAIN.to_owned(),
            PLAIN.replace("check", "peek"),
            PLAIN.replace("length: 2", "length: 3"),
            PLAIN.replace("length: 2", "length: 9999"),
            PLAIN.replace("HTTP/1.1", "HTTP/1.0"),
            format!("{PLAIN}{PLAIN}"),
            PLAIN.replace("{}", "[]"),
            with_header("Authorization: Bearer one\r\nx-slidegate-token: two"),
            with_header("Authorization: Bearer two\r\nx-slidegate-token: one"),
            with_header("x-slidegate-token: two"),
            with_header("x-slidegate-token:"),
            with_header("traceparent: 00-1-2-01"),
            with_header("connection: close"),
            with_header(&format!("a: {}", "b".repeat(MAX_CACHED_BYTES))),
            format!("\r\n{PLAIN}"),
        ];
        for first in &requests {
            for second in &requests {
                for length in 0..=second.len() {
                    let (mut parser, second) = (RequestParser::default(), &second.as_bytes()[..length]);
                    parser.parse(first.as_bytes());
                    assert_eq!(parser.parse(second), parse(second), "{first} → {}", second.escape_ascii());
                }
            }
        }
    }

    #[test]
    fn a_short_head_without_credentials_is_cached() {
        let (mut parser, head) = (RequestParser::default(), &PLAIN.as_bytes()[..PLAIN.len() - 2]);
        let long = with_header(&format!("a: {}", "b".repeat(MAX_CACHED_BYTES)));
        for other in [
            PLAIN,
            &long,
            &with_header("x-slidegate-token: two"),
            &with_header("authorization: one"),
            &with_header("traceparent: a"),
        ] {
            assert!(matches!(parser.parse(other.as_bytes()), Parsed::Plain(..)));
            assert_eq!(parser.cached_head, head, "after {other}");
        }
        // A wrong entry shows that the cache is used.
        parser.cached = Some(PlainHead { verb: Verb::Reset, body_bytes: 1 });
        let expected = PlainRequest {
            verb: Verb::Reset,
            credentials: Credentials::default(),
            trace: TraceContext::default(),
            body: b"{",
        };
        assert_eq!(parser.parse(PLAIN.as_bytes()), Parsed::Plain(expected, PLAIN.len() - 1));
    }
}
