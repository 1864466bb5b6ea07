//! Answers, as they are written.

use crate::request::{Refusal, RefusalKind};

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

/// Why a command was refused: `UNAVAILABLE` if it is because of the store, and worth another try.
pub(super) fn refusal(out: &mut Vec<u8>, refusal: &Refusal) {
    let code = match refusal.kind {
        RefusalKind::StoreUnavailable { .. } => "UNAVAILABLE",
        _ => "ERR",
    };
    error(out, &format!("{code} {refusal}"));
}

#[inline]
pub(super) fn integer(out: &mut Vec<u8>, number: i64) {
    out.push(b':');
    out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
    out.extend_from_slice(b"\r\n");
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

fn header(out: &mut Vec<u8>, kind: u8, length: usize) {
    out.push(kind);
    out.extend_from_slice(itoa::Buffer::new().format(length).as_bytes());
    out.extend_from_slice(b"\r\n");
}

/// Five numbers, which is what all decisions are told in.
#[inline]
pub(super) fn five(out: &mut Vec<u8>, numbers: [i64; 5]) {
    out.extend_from_slice(b"*5\r\n");
    for number in numbers {
        integer(out, number);
    }
}
