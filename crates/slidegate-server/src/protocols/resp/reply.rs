//! Encoding of replies.

use slidegate_engine::{Rejection, RejectionKind};

/// Version of the protocol. Version 3 has its own encoding of maps and of null.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum ProtocolVersion {
    #[default]
    Two,
    Three,
}

pub(super) fn simple_string(out: &mut Vec<u8>, text: &str) {
    out.push(b'+');
    out.extend_from_slice(text.as_bytes());
    out.extend_from_slice(b"\r\n");
}

/// Writes an error. A space replaces each control character, such as a line break, which would end the reply.
pub(super) fn error(out: &mut Vec<u8>, text: &str) {
    out.push(b'-');
    out.extend(text.bytes().map(|byte| if byte.is_ascii_control() { b' ' } else { byte }));
    out.extend_from_slice(b"\r\n");
}

/// Writes a rejection as an error: `UNAVAILABLE` if the store did not decide, `NOPERM` if the token does not allow the verb, else
/// `ERR`.
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

pub(super) fn bulk_string(out: &mut Vec<u8>, bytes: &[u8]) {
    header(out, b'$', bytes.len());
    out.extend_from_slice(bytes);
    out.extend_from_slice(b"\r\n");
}

/// Writes the header of an array; its elements follow.
pub(super) fn array(out: &mut Vec<u8>, length: usize) {
    header(out, b'*', length);
}

/// Writes the header of a map; its names follow, each with its value after it.
pub(super) fn map(out: &mut Vec<u8>, version: ProtocolVersion, pairs: usize) {
    match version {
        ProtocolVersion::Two => header(out, b'*', 2 * pairs),
        ProtocolVersion::Three => header(out, b'%', pairs),
    }
}

pub(super) fn null(out: &mut Vec<u8>, version: ProtocolVersion) {
    out.extend_from_slice(match version {
        ProtocolVersion::Two => b"$-1\r\n",
        ProtocolVersion::Three => b"_\r\n",
    });
}

fn header(out: &mut Vec<u8>, kind: u8, number: impl itoa::Integer) {
    out.push(kind);
    out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
    out.extend_from_slice(b"\r\n");
}

/// Writes an array of five integers, the reply for most decisions. Encodes them on the stack first: most have one or two
/// digits, and a capacity check for each takes longer than its encoding.
#[inline]
pub(super) fn five_integers(out: &mut Vec<u8>, numbers: [i64; 5]) {
    /// Length of `:-9223372036854775808\r\n`.
    const MAX_BYTES: usize = 23;
    let mut text = [0; 4 + 5 * MAX_BYTES];
    text[..4].copy_from_slice(b"*5\r\n");
    let mut end = 4;
    for number in numbers {
        let rest = &mut text[end..end + MAX_BYTES];
        end += match u8::try_from(number) {
            Ok(one @ 0..=9) => copy_to_start(rest, [b':', b'0' + one, b'\r', b'\n']),
            Ok(two @ 10..=99) => copy_to_start(rest, [b':', b'0' + two / 10, b'0' + two % 10, b'\r', b'\n']),
            _ => {
                let mut digits = itoa::Buffer::new();
                let digits = digits.format(number).as_bytes();
                rest[0] = b':';
                rest[1..=digits.len()].copy_from_slice(digits);
                1 + digits.len() + copy_to_start(&mut rest[1 + digits.len()..], *b"\r\n")
            }
        };
    }
    out.extend_from_slice(&text[..end]);
}

/// Copies `bytes` to the start of `text`, and returns their number.
#[inline]
fn copy_to_start<const N: usize>(text: &mut [u8], bytes: [u8; N]) -> usize {
    text[..N].copy_from_slice(&bytes);
    N
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn five_integers_are_encoded_like_single_ones() {
        let numbers = [0, 1, 9, 10, 11, 99, 100, 101, 255, 256, 1009, -1, -10, i64::MAX, i64::MIN];
        for start in 0..numbers.len() {
            let mut rotated = numbers;
            rotated.rotate_left(start);
            let (mut together, mut one_by_one) = (b"before".to_vec(), b"before*5\r\n".to_vec());
            five_integers(&mut together, [rotated[0], rotated[1], rotated[2], rotated[3], rotated[4]]);
            for number in &rotated[..5] {
                integer(&mut one_by_one, *number);
            }
            assert_eq!(together, one_by_one, "{rotated:?}");
        }
    }
}
