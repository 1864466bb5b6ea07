//! Parser of commands in a connection's input, without copies.

use std::fmt;

use super::inline;

/// Maximum length of a command.
pub(super) const MAX_BYTES: usize = 64 << 10;
/// Maximum number of a command's words.
const MAX_WORDS: usize = 1024;
/// Maximum number of words before authentication, as in Redis.
const MAX_UNAUTHENTICATED_WORDS: usize = 10;
/// Maximum length of a word before authentication, as in Redis.
const MAX_UNAUTHENTICATED_BYTES: usize = 16 << 10;
/// Maximum number of digits in a length.
const MAX_DIGITS: usize = 20;

/// Result of parsing the beginning of the input. The numbers are lengths in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Frame {
    /// A command as an array of bulk strings.
    Command(usize),
    /// A command as a line of text, whose words are copied.
    Inline(usize),
    /// An empty array or line.
    Empty(usize),
    /// The beginning of a command.
    Incomplete,
    /// Input that no command begins with.
    Invalid(ProtocolError),
}

/// Violation of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProtocolError {
    /// This byte instead of the `$` of a bulk string.
    ExpectedBulk(u8),
    /// Any other violation, with its message.
    Other(&'static str),
}

impl fmt::Display for ProtocolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ExpectedBulk(byte) => {
                write!(f, "Protocol error: expected '$', got '{}'", printable(*byte))
            }
            Self::Other(message) => write!(f, "Protocol error: {message}"),
        }
    }
}

/// Parser that retains the positions of the last command's words.
#[derive(Debug, Default)]
pub(super) struct FrameParser {
    /// Start and end of each word, in the input or in `unquoted`.
    ranges: Vec<(u32, u32)>,
    /// Words of an inline command, without their quotes.
    unquoted: Vec<u8>,
}

/// Words of a command; the first is its name.
#[derive(Clone, Copy)]
pub(super) struct Arguments<'a, 'p> {
    bytes: &'a [u8],
    ranges: &'p [(u32, u32)],
}

impl<'a, 'p> Arguments<'a, 'p> {
    pub(super) fn len(&self) -> usize {
        self.ranges.len()
    }

    /// Returns the word at `index`, or an empty one beyond the end.
    #[inline]
    pub(super) fn word(&self, index: usize) -> &'a [u8] {
        match self.ranges.get(index) {
            Some((start, end)) => &self.bytes[*start as usize..*end as usize],
            None => &[],
        }
    }

    /// Returns the words from `index` on.
    pub(super) fn iter_from(self, index: usize) -> impl Iterator<Item = &'a [u8]> + use<'a, 'p> {
        (index..self.len()).map(move |index| self.word(index))
    }
}

impl FrameParser {
    /// Returns the words of the last [`Frame::Command`], which was parsed from `bytes`.
    #[inline]
    pub(super) fn arguments<'a>(&self, bytes: &'a [u8]) -> Arguments<'a, '_> {
        Arguments { bytes, ranges: &self.ranges }
    }

    /// Returns the words of the last [`Frame::Inline`].
    pub(super) fn inline_arguments(&self) -> Arguments<'_, '_> {
        Arguments { bytes: &self.unquoted, ranges: &self.ranges }
    }

    /// Parses the beginning of `bytes`.
    #[inline]
    pub(super) fn parse(&mut self, bytes: &[u8], is_authenticated: bool) -> Frame {
        self.ranges.clear();
        let frame = match bytes.first() {
            None => Frame::Incomplete,
            Some(b'*') => self.parse_array(bytes, is_authenticated).unwrap_or_else(|frame| frame),
            Some(_) => self.parse_inline(bytes),
        };
        if frame == Frame::Incomplete && bytes.len() >= MAX_BYTES {
            return invalid("too big request");
        }
        frame
    }

    /// Parses an array of bulk strings, such as `*1\r\n$4\r\nPING\r\n`. The error is the frame of any other input.
    #[inline]
    fn parse_array(&mut self, bytes: &[u8], is_authenticated: bool) -> Result<Frame, Frame> {
        let (max_words, max_bytes) = if is_authenticated {
            (MAX_WORDS, MAX_BYTES)
        } else {
            (MAX_UNAUTHENTICATED_WORDS, MAX_UNAUTHENTICATED_BYTES)
        };
        let (count, mut offset) = parse_length(bytes, 1, "invalid multibulk length")?;
        let Ok(count) = usize::try_from(count) else { return Ok(Frame::Empty(offset)) };
        if count > max_words {
            return Err(invalid(if is_authenticated {
                "invalid multibulk length"
            } else {
                "unauthenticated multibulk length"
            }));
        }
        for _ in 0..count {
            match bytes.get(offset) {
                None => return Err(Frame::Incomplete),
                Some(b'$') => {}
                Some(other) => return Err(Frame::Invalid(ProtocolError::ExpectedBulk(*other))),
            }
            let (length, start) = parse_length(bytes, offset + 1, "invalid bulk length")?;
            let length = match usize::try_from(length) {
                Ok(length) if length <= max_bytes => length,
                _ if !is_authenticated && length > 0 => return Err(invalid("unauthenticated bulk length")),
                _ => return Err(invalid("invalid bulk length")),
            };
            let end = start + length;
            match bytes.get(end..end + 2) {
                None => return Err(Frame::Incomplete),
                Some(b"\r\n") => {}
                Some(_) => return Err(invalid("expected CRLF after a bulk string")),
            }
            self.ranges.push((start as u32, end as u32));
            offset = end + 2;
        }
        Ok(if count == 0 { Frame::Empty(offset) } else { Frame::Command(offset) })
    }

    /// Parses a line of text, such as `PING\r\n`.
    fn parse_inline(&mut self, bytes: &[u8]) -> Frame {
        let searched = &bytes[..bytes.len().min(MAX_BYTES)];
        let Some(end) = searched.iter().position(|byte| *byte == b'\n') else {
            return if bytes.len() >= MAX_BYTES {
                invalid("too big inline request")
            } else {
                Frame::Incomplete
            };
        };
        let line = searched[..end].strip_suffix(b"\r").unwrap_or(&searched[..end]);
        self.unquoted.clear();
        match inline::split(line, &mut self.unquoted, &mut self.ranges) {
            Err(inline::UnbalancedQuotes) => invalid("unbalanced quotes in request"),
            Ok(()) if self.ranges.len() > MAX_WORDS => invalid("too many words in request"),
            Ok(()) if self.ranges.is_empty() => Frame::Empty(end + 1),
            Ok(()) => Frame::Inline(end + 1),
        }
    }
}

fn invalid(message: &'static str) -> Frame {
    Frame::Invalid(ProtocolError::Other(message))
}

fn printable(byte: u8) -> char {
    if byte.is_ascii_graphic() { byte.into() } else { '?' }
}

/// Parses the line at `offset` as an integer, and returns it with the offset of the next line. `message` describes an
/// invalid one.
#[inline]
fn parse_length(bytes: &[u8], offset: usize, message: &'static str) -> Result<(i64, usize), Frame> {
    // Fast path: nearly all lengths have one or two digits.
    match bytes.get(offset..) {
        Some([one @ b'0'..=b'9', b'\r', b'\n', ..]) => Ok((i64::from(one - b'0'), offset + 3)),
        Some([ten @ b'0'..=b'9', one @ b'0'..=b'9', b'\r', b'\n', ..]) => {
            Ok((i64::from(ten - b'0') * 10 + i64::from(one - b'0'), offset + 4))
        }
        _ => parse_long_length(bytes, offset, message),
    }
}

/// Slow path of [`parse_length`], for integers of any length and sign.
fn parse_long_length(bytes: &[u8], offset: usize, message: &'static str) -> Result<(i64, usize), Frame> {
    let mut end = offset;
    let is_negative = bytes.get(end) == Some(&b'-');
    end += usize::from(is_negative);
    let first_digit = end;
    let mut number: i64 = 0;
    while let Some(digit @ b'0'..=b'9') = bytes.get(end) {
        if end - first_digit == MAX_DIGITS {
            return Err(invalid(message));
        }
        number = number.saturating_mul(10).saturating_add(i64::from(digit - b'0'));
        end += 1;
    }
    match bytes.get(end..) {
        Some([b'\r', b'\n', ..]) if end > first_digit => {
            Ok((if is_negative { -number } else { number }, end + 2))
        }
        Some([] | [b'\r']) => Err(Frame::Incomplete),
        _ => Err(invalid(message)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the words of all commands in `bytes`, and the first error.
    fn parse_all(bytes: &[u8]) -> Vec<Result<Vec<String>, String>> {
        let (mut parser, mut rest, mut commands) = (FrameParser::default(), bytes, Vec::new());
        let texts = |arguments: Arguments<'_, '_>| -> Vec<String> {
            arguments.iter_from(0).map(|word| String::from_utf8_lossy(word).into_owned()).collect()
        };
        loop {
            let length = match parser.parse(rest, true) {
                Frame::Command(length) => {
                    commands.push(Ok(texts(parser.arguments(rest))));
                    length
                }
                Frame::Inline(length) => {
                    commands.push(Ok(texts(parser.inline_arguments())));
                    length
                }
                Frame::Empty(length) => length,
                Frame::Incomplete => return commands,
                Frame::Invalid(error) => {
                    commands.push(Err(error.to_string()));
                    return commands;
                }
            };
            rest = &rest[length..];
        }
    }

    #[test]
    fn pipelined_commands_are_parsed_and_an_incomplete_one_is_kept() {
        let input =
            b"*2\r\n$4\r\nECHO\r\n$2\r\na\n\r\nPING 'a b'\r\n*0\r\n*-1\r\n\r\n*1\r\n$0\r\n\r\n*1\r\n$4\r\nPI";
        let expected = [Ok(vec!["ECHO", "a\n"]), Ok(vec!["PING", "a b"]), Ok(vec![""])];
        let expected = expected.map(|words: Result<_, String>| {
            words.map(|words| words.iter().map(ToString::to_string).collect::<Vec<_>>())
        });
        assert_eq!(parse_all(input), expected);
        for end in 0..input.len() {
            let commands = parse_all(&input[..end]);
            assert_eq!(commands, expected[..commands.len()], "cut at {end}");
        }
    }

    #[test]
    fn lengths_of_all_digit_counts_are_parsed() {
        for length in [0, 1, 9, 10, 11, 42, 99, 100, 101, 999, 1000, MAX_BYTES / 2] {
            let word = "a".repeat(length);
            let input = format!("*2\r\n${length}\r\n{word}\r\n$1\r\nb\r\n");
            assert_eq!(parse_all(input.as_bytes()), [Ok(vec![word, "b".to_owned()])], "{length}");
        }
    }

    #[test]
    fn invalid_input_is_a_protocol_error() {
        let long = [&b"a".repeat(MAX_BYTES)[..], b"\r\n"].concat();
        let cases: [(&[u8], &str); 10] = [
            (b"*1025\r\n", "invalid multibulk length"),
            (b"*1x\r\n", "invalid multibulk length"),
            (b"*\r\n", "invalid multibulk length"),
            (b"*1\r\n+a\r\n", "expected '$', got '+'"),
            (b"*1\r\n$-1\r\n", "invalid bulk length"),
            (b"*1\r\n$65537\r\n", "invalid bulk length"),
            (b"*1\r\n$99999999999999999999999999\r\n", "invalid bulk length"),
            (b"*1\r\n$1\r\nabc\r\n", "expected CRLF after a bulk string"),
            (b"PING \"a\r\n", "unbalanced quotes in request"),
            (&long, "too big inline request"),
        ];
        for (bytes, message) in cases {
            assert_eq!(parse_all(bytes), [Err(format!("Protocol error: {message}"))]);
        }
    }

    #[test]
    fn limits_are_lower_before_authentication() {
        let mut parser = FrameParser::default();
        assert_eq!(parser.parse(b"*11\r\n", false), invalid("unauthenticated multibulk length"));
        assert_eq!(parser.parse(b"*1\r\n$16385\r\n", false), invalid("unauthenticated bulk length"));
        assert_eq!(parser.parse(b"*11\r\n", true), Frame::Incomplete);
    }
}
