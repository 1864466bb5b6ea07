//! A command in what was read, found without a copy.

use std::fmt;

use super::inline;

/// The largest command, and the longest line of one that is not counted out.
pub(super) const MAX_BYTES: usize = 64 << 10;
/// The most words of a command.
const MAX_WORDS: usize = 1024;
/// The same for somebody who has yet to say a password.
const STRANGERS_WORDS: usize = 10;
const STRANGERS_BYTES: usize = 16 << 10;
/// No number is written in more digits.
const MAX_DIGITS: usize = 20;

/// What stands at the beginning of what was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Frame {
    /// A command of so many bytes, whose words are in place.
    Command(usize),
    /// A command that is a line of so many bytes, whose words had to be copied.
    Line(usize),
    /// Nothing, in so many bytes.
    Nothing(usize),
    /// The beginning of a command.
    Half,
    /// No command at all.
    Broken(Broken),
}

/// Why something is no command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Broken {
    /// For this reason.
    Because(&'static str),
    /// This byte is where a length should be.
    NoLength(u8),
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Because(why) => write!(f, "Protocol error: {why}"),
            Self::NoLength(byte) => write!(f, "Protocol error: expected '$', got '{}'", shown(*byte)),
        }
    }
}

/// Where the words of a command are.
#[derive(Debug, Default)]
pub(super) struct Words {
    places: Vec<(u32, u32)>,
    /// The words of a line, without their quotes.
    copied: Vec<u8>,
}

/// The words of a command.
#[derive(Clone, Copy)]
pub(super) struct Arguments<'a, 'p> {
    bytes: &'a [u8],
    places: &'p [(u32, u32)],
}

impl<'a, 'p> Arguments<'a, 'p> {
    pub(super) fn len(&self) -> usize {
        self.places.len()
    }

    /// The word at `place`, empty if there is none.
    #[inline]
    pub(super) fn word(&self, place: usize) -> &'a [u8] {
        match self.places.get(place) {
            Some((from, to)) => &self.bytes[*from as usize..*to as usize],
            None => &[],
        }
    }

    pub(super) fn from(self, place: usize) -> impl Iterator<Item = &'a [u8]> + use<'a, 'p> {
        (place..self.len()).map(move |place| self.word(place))
    }
}

impl Words {
    /// The words of a command that was found in `bytes`.
    #[inline]
    pub(super) fn within<'a>(&self, bytes: &'a [u8]) -> Arguments<'a, '_> {
        Arguments { bytes, places: &self.places }
    }

    /// The words of a line.
    pub(super) fn of_line(&self) -> Arguments<'_, '_> {
        Arguments { bytes: &self.copied, places: &self.places }
    }

    /// What `bytes` begin with.
    #[inline]
    pub(super) fn find(&mut self, bytes: &[u8], is_stranger: bool) -> Frame {
        self.places.clear();
        let frame = match bytes.first() {
            None => Frame::Half,
            Some(b'*') => self.find_counted(bytes, is_stranger).unwrap_or_else(|frame| frame),
            Some(_) => self.find_line(bytes),
        };
        if frame == Frame::Half && bytes.len() >= MAX_BYTES {
            return broken("too big request");
        }
        frame
    }

    /// `*2`, and each word with its length before it. The error is what it is instead.
    #[inline]
    fn find_counted(&mut self, bytes: &[u8], is_stranger: bool) -> Result<Frame, Frame> {
        let (most_words, most_bytes) =
            if is_stranger { (STRANGERS_WORDS, STRANGERS_BYTES) } else { (MAX_WORDS, MAX_BYTES) };
        let (count, mut at) = number(bytes, 1, "invalid multibulk length")?;
        let Ok(count) = usize::try_from(count) else { return Ok(Frame::Nothing(at)) };
        if count > most_words {
            return Err(broken(if is_stranger {
                "unauthenticated multibulk length"
            } else {
                "invalid multibulk length"
            }));
        }
        for _ in 0..count {
            match bytes.get(at) {
                None => return Err(Frame::Half),
                Some(b'$') => {}
                Some(other) => return Err(Frame::Broken(Broken::NoLength(*other))),
            }
            let (length, from) = number(bytes, at + 1, "invalid bulk length")?;
            let length = match usize::try_from(length) {
                Ok(length) if length <= most_bytes => length,
                _ if is_stranger && length > 0 => return Err(broken("unauthenticated bulk length")),
                _ => return Err(broken("invalid bulk length")),
            };
            let to = from + length;
            match bytes.get(to..to + 2) {
                None => return Err(Frame::Half),
                Some(b"\r\n") => {}
                Some(_) => return Err(broken("expected the end of a word behind its last byte")),
            }
            self.places.push((from as u32, to as u32));
            at = to + 2;
        }
        Ok(if count == 0 { Frame::Nothing(at) } else { Frame::Command(at) })
    }

    /// As a person types it.
    fn find_line(&mut self, bytes: &[u8]) -> Frame {
        let searched = &bytes[..bytes.len().min(MAX_BYTES)];
        let Some(end) = searched.iter().position(|byte| *byte == b'\n') else {
            return if bytes.len() >= MAX_BYTES { broken("too big inline request") } else { Frame::Half };
        };
        let line = searched[..end].strip_suffix(b"\r").unwrap_or(&searched[..end]);
        self.copied.clear();
        match inline::split(line, &mut self.copied, &mut self.places) {
            Err(inline::Unbalanced) => broken("unbalanced quotes in request"),
            Ok(()) if self.places.len() > MAX_WORDS => broken("too many words in request"),
            Ok(()) if self.places.is_empty() => Frame::Nothing(end + 1),
            Ok(()) => Frame::Line(end + 1),
        }
    }
}

fn broken(why: &'static str) -> Frame {
    Frame::Broken(Broken::Because(why))
}

fn shown(byte: u8) -> char {
    if byte.is_ascii_graphic() { byte.into() } else { '?' }
}

/// The number in the line that begins at `at`, and where the next line begins.
#[inline]
fn number(bytes: &[u8], at: usize, otherwise: &'static str) -> Result<(i64, usize), Frame> {
    // Nearly all there are.
    match bytes.get(at..) {
        Some([one @ b'0'..=b'9', b'\r', b'\n', ..]) => Ok((i64::from(one - b'0'), at + 3)),
        Some([ten @ b'0'..=b'9', one @ b'0'..=b'9', b'\r', b'\n', ..]) => {
            Ok((i64::from(ten - b'0') * 10 + i64::from(one - b'0'), at + 4))
        }
        _ => long_number(bytes, at, otherwise),
    }
}

/// The same, of any length.
fn long_number(bytes: &[u8], at: usize, otherwise: &'static str) -> Result<(i64, usize), Frame> {
    let mut place = at;
    let is_negative = bytes.get(place) == Some(&b'-');
    place += usize::from(is_negative);
    let first = place;
    let mut number: i64 = 0;
    while let Some(digit @ b'0'..=b'9') = bytes.get(place) {
        if place - first == MAX_DIGITS {
            return Err(broken(otherwise));
        }
        number = number.saturating_mul(10).saturating_add(i64::from(digit - b'0'));
        place += 1;
    }
    match bytes.get(place..) {
        Some([b'\r', b'\n', ..]) if place > first => {
            Ok((if is_negative { -number } else { number }, place + 2))
        }
        Some([] | [b'\r']) => Err(Frame::Half),
        _ => Err(broken(otherwise)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(bytes: &[u8]) -> Vec<Result<Vec<String>, String>> {
        let (mut words, mut rest, mut found) = (Words::default(), bytes, Vec::new());
        let texts = |arguments: Arguments<'_, '_>| -> Vec<String> {
            arguments.from(0).map(|word| String::from_utf8_lossy(word).into_owned()).collect()
        };
        loop {
            let length = match words.find(rest, false) {
                Frame::Command(length) => {
                    found.push(Ok(texts(words.within(rest))));
                    length
                }
                Frame::Line(length) => {
                    found.push(Ok(texts(words.of_line())));
                    length
                }
                Frame::Nothing(length) => length,
                Frame::Half => return found,
                Frame::Broken(why) => {
                    found.push(Err(why.to_string()));
                    return found;
                }
            };
            rest = &rest[length..];
        }
    }

    #[test]
    fn commands_follow_one_another_and_a_half_one_waits() {
        let all =
            b"*2\r\n$4\r\nECHO\r\n$2\r\na\n\r\nPING 'a b'\r\n*0\r\n*-1\r\n\r\n*1\r\n$0\r\n\r\n*1\r\n$4\r\nPI";
        let whole = [Ok(vec!["ECHO", "a\n"]), Ok(vec!["PING", "a b"]), Ok(vec![""])];
        let whole = whole.map(|words: Result<_, String>| {
            words.map(|words| words.iter().map(ToString::to_string).collect::<Vec<_>>())
        });
        assert_eq!(found(all), whole);
        for end in 0..all.len() {
            let found = found(&all[..end]);
            assert_eq!(found, whole[..found.len()], "cut at {end}");
        }
    }

    #[test]
    fn words_are_as_long_as_they_say() {
        for length in [0, 1, 9, 10, 11, 42, 99, 100, 101, 999, 1000, MAX_BYTES / 2] {
            let word = "a".repeat(length);
            let said = format!("*2\r\n${length}\r\n{word}\r\n$1\r\nb\r\n");
            assert_eq!(found(said.as_bytes()), [Ok(vec![word, "b".to_owned()])], "{length}");
        }
    }

    #[test]
    fn what_is_no_command_is_named() {
        let long = [&b"a".repeat(MAX_BYTES)[..], b"\r\n"].concat();
        let cases: [(&[u8], &str); 10] = [
            (b"*1025\r\n", "invalid multibulk length"),
            (b"*1x\r\n", "invalid multibulk length"),
            (b"*\r\n", "invalid multibulk length"),
            (b"*1\r\n+a\r\n", "expected '$', got '+'"),
            (b"*1\r\n$-1\r\n", "invalid bulk length"),
            (b"*1\r\n$65537\r\n", "invalid bulk length"),
            (b"*1\r\n$99999999999999999999999999\r\n", "invalid bulk length"),
            (b"*1\r\n$1\r\nabc\r\n", "expected the end of a word behind its last byte"),
            (b"PING \"a\r\n", "unbalanced quotes in request"),
            (&long, "too big inline request"),
        ];
        for (bytes, why) in cases {
            assert_eq!(found(bytes), [Err(format!("Protocol error: {why}"))]);
        }
    }

    #[test]
    fn a_stranger_may_say_little() {
        let mut words = Words::default();
        let why = broken;
        assert_eq!(words.find(b"*11\r\n", true), why("unauthenticated multibulk length"));
        assert_eq!(words.find(b"*1\r\n$16385\r\n", true), why("unauthenticated bulk length"));
        assert_eq!(words.find(b"*11\r\n", false), Frame::Half);
    }
}
