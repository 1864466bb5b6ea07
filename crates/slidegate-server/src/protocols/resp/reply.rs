//! Answers, as they are written.

use crate::request::{Rejection, RejectionKind};

/// The versions of the protocol. Here they differ in how maps are written, and nothing at all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Version {
    #[default]
    Two,
    Three,
}

pub(super) fn simple(out: &mut Vec<u8>, text: &str) {
    out.push(b'+');
    out.extend_from_slice(text.as_bytes());
    out.extend_from_slice(b"\r\n");
}

/// An error, whatever is in it: what would end the line is left out.
pub(super) fn error(out: &mut Vec<u8>, text: &str) {
    out.push(b'-');
    out.extend(text.bytes().map(|byte| if byte.is_ascii_control() { b' ' } else { byte }));
    out.extend_from_slice(b"\r\n");
}

/// Why a command was refused: `UNAVAILABLE` if it is because of the store, and worth another try, `NOPERM` if the token is not
/// for it.
pub(super) fn rejection(out: &mut Vec<u8>, rejection: &Rejection) {
    let code = match rejection.kind {
        RejectionKind::StoreUnavailable { .. } => "UNAVAILABLE",
        RejectionKind::Forbidden => "NOPERM",
        _ => "ERR",
    };
    error(out, &format!("{code} {rejection}"));
}

pub(super) fn integer(out: &mut Vec<u8>, number: i64) {
    header(out, b':', number);
}

pub(super) fn bulk(out: &mut Vec<u8>, bytes: &[u8]) {
    header(out, b'$', bytes.len());
    out.extend_from_slice(bytes);
    out.extend_from_slice(b"\r\n");
}

pub(super) fn array(out: &mut Vec<u8>, length: usize) {
    header(out, b'*', length);
}

/// So many names, each with its value behind it.
pub(super) fn map(out: &mut Vec<u8>, version: Version, pairs: usize) {
    match version {
        Version::Two => header(out, b'*', 2 * pairs),
        Version::Three => header(out, b'%', pairs),
    }
}

pub(super) fn null(out: &mut Vec<u8>, version: Version) {
    out.extend_from_slice(match version {
        Version::Two => b"$-1\r\n",
        Version::Three => b"_\r\n",
    });
}

fn header(out: &mut Vec<u8>, kind: u8, number: impl itoa::Integer) {
    out.push(kind);
    out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
    out.extend_from_slice(b"\r\n");
}

/// Five numbers, which is what all decisions are told in. They are put together before they are put to the rest: most have
/// a digit or two, and to ask each time whether there is room takes longer than to write them.
#[inline]
pub(super) fn five(out: &mut Vec<u8>, numbers: [i64; 5]) {
    /// `:-9223372036854775808\r\n`.
    const MAX_BYTES: usize = 23;
    let mut text = [0; 4 + 5 * MAX_BYTES];
    text[..4].copy_from_slice(b"*5\r\n");
    let mut end = 4;
    for number in numbers {
        let rest = &mut text[end..end + MAX_BYTES];
        end += match u8::try_from(number) {
            Ok(one @ 0..=9) => put(rest, [b':', b'0' + one, b'\r', b'\n']),
            Ok(two @ 10..=99) => put(rest, [b':', b'0' + two / 10, b'0' + two % 10, b'\r', b'\n']),
            _ => {
                let mut digits = itoa::Buffer::new();
                let digits = digits.format(number).as_bytes();
                rest[0] = b':';
                rest[1..=digits.len()].copy_from_slice(digits);
                1 + digits.len() + put(&mut rest[1 + digits.len()..], *b"\r\n")
            }
        };
    }
    out.extend_from_slice(&text[..end]);
}

/// Puts `bytes` at the beginning, and says how many there are.
#[inline]
fn put<const N: usize>(text: &mut [u8], bytes: [u8; N]) -> usize {
    text[..N].copy_from_slice(&bytes);
    N
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn five_numbers_are_written_like_each_of_them() {
        let numbers = [0, 1, 9, 10, 11, 99, 100, 101, 255, 256, 1009, -1, -10, i64::MAX, i64::MIN];
        for start in 0..numbers.len() {
            let mut some = numbers;
            some.rotate_left(start);
            let (mut five_at_once, mut one_by_one) = (b"before".to_vec(), b"before*5\r\n".to_vec());
            five(&mut five_at_once, [some[0], some[1], some[2], some[3], some[4]]);
            for number in &some[..5] {
                integer(&mut one_by_one, *number);
            }
            assert_eq!(five_at_once, one_by_one, "{some:?}");
        }
    }
}
