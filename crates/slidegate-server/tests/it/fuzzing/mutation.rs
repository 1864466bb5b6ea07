//! Random mutations of requests.

use fastrand::Rng;

/// Words with a meaning in HTTP, JSON or the API.
const WORDS: &[&[u8]] = &[
    b"\r\n",
    b"\r\n\r\n",
    b"\0",
    b"\xff",
    b"\xed\xa0\x80",
    b"{",
    b"}",
    b"[",
    b"]",
    b"\"",
    b"\\",
    b"\\u0000",
    b"\\ud800",
    b",",
    b":",
    b"null",
    b"true",
    b"-1",
    b"0",
    b"1e999",
    b"18446744073709551616",
    b"281474976710657",
    b"0.5",
    b"content-length: ",
    b"transfer-encoding: chunked\r\n",
    b"connection: close\r\n",
    b"expect: 100-continue\r\n",
    b"HTTP/1.0",
    b"HTTP/9.9",
    b"PRI ",
    b"\"key\"",
    b"\"policy\"",
    b"\"quotas\"",
    b"\"cost\"",
    b"\"tier\"",
    b"1/1s",
    b"token-bucket",
    b"\"burst\"",
    b"\"slots\"",
    b"%00",
    b"../",
    b"/forward-auth/keyed",
    b"deny_status=503&",
    b"x-forwarded-for: ",
    b"x-api-key: ",
    b"0\r\n\r\n",
    b"ffffffffffffffff\r\n",
];
/// Above the limit of a single body and below that of a batch.
const MAX_RUN: usize = 70_000;

/// Returns a request of the corpus with mutations anywhere.
pub(super) fn mutated(random: &mut Rng, corpus: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = random.choice(corpus).cloned().unwrap_or_default();
    mutate(random, corpus, &mut bytes);
    bytes
}

/// Returns a request with a valid head and a mutated body.
pub(super) fn with_mutated_body(random: &mut Rng, corpus: &[Vec<u8>]) -> Vec<u8> {
    let request = random.choice(corpus).cloned().unwrap_or_default();
    let body = request.windows(4).position(|window| window == b"\r\n\r\n").map_or(0, |index| index + 4);
    let mut body = request[body..].to_vec();
    mutate(random, corpus, &mut body);
    let path = random.choice(["check", "peek", "refund", "reset"]).unwrap_or_default();
    let head = format!(
        "POST /v1/{path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    [head.into_bytes(), body].concat()
}

fn mutate(random: &mut Rng, corpus: &[Vec<u8>], bytes: &mut Vec<u8>) {
    for _ in 0..random.usize(1..=4) {
        let index = random.usize(..=bytes.len());
        let end = random.usize(index..=bytes.len()).min(index + 64);
        match random.u8(..8) {
            0 => bytes.truncate(index),
            1 => drop(bytes.drain(index..end)),
            2 => {
                let copy = bytes[index..end].to_vec();
                bytes.splice(index..index, copy);
            }
            3 => {
                let other = random.choice(corpus).cloned().unwrap_or_default();
                let from = random.usize(..=other.len());
                bytes.splice(index..end, other[from..].iter().copied());
            }
            4 if random.u8(..8) == 0 => {
                let (byte, length) =
                    (random.choice(b"a[{\"1 ").copied().unwrap_or(0), random.usize(..MAX_RUN));
                bytes.splice(index..index, std::iter::repeat_n(byte, length));
            }
            5 | 6 => {
                let word = random.choice(WORDS).copied().unwrap_or_default();
                bytes.splice(index..if random.bool() { end } else { index }, word.iter().copied());
            }
            _ => {
                if let Some(byte) = bytes.get_mut(index) {
                    *byte ^= 1 << random.u8(..8);
                }
            }
        }
    }
}
