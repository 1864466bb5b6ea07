//! Fuzzing with mutated streams of commands: the server replies or closes the connection, without a panic or a leak.

use std::fs;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::path::Path;
use std::process::Stdio;

use super::gcra::SeededRandom;
use super::{address_of, open};
use crate::process::{ServeProcess, TempFile, slidegate};

const ROUNDS: u64 = 1500;
const MAX_STREAM_BYTES: usize = 200_000;
/// Maximum growth of the server's memory.
const MAX_GROWTH_MB: u64 = 64;

fn corpus() -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus/resp");
    let mut paths: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    let streams: Vec<_> = paths.iter().map(|path| fs::read(path).unwrap()).collect();
    assert!(streams.len() >= 5);
    streams
}

fn mutate(stream: &mut Vec<u8>, random: &mut SeededRandom, corpus: &[Vec<u8>]) {
    let at = random.below(stream.len() as u64 + 1) as usize;
    match random.below(7) {
        0 => stream.truncate(at),
        1 => stream.insert(at, random.below(256) as u8),
        2 if at < stream.len() => stream[at] = random.below(256) as u8,
        3 if at < stream.len() => drop(stream.remove(at)),
        4 => {
            let tokens =
                [b"-1".as_slice(), b"0", b"1024", b"1025", b"65536", b"99999999999999999999", b"\r\n"];
            stream.splice(at..at, tokens[random.below(7) as usize].iter().copied());
        }
        5 => {
            let other = &corpus[random.below(corpus.len() as u64) as usize];
            stream.extend_from_slice(&other[random.below(other.len() as u64) as usize..]);
        }
        _ => {
            let from = random.below(at as u64 + 1) as usize;
            let piece = stream[from..at].to_vec();
            stream.splice(at..at, piece);
        }
    }
    stream.truncate(MAX_STREAM_BYTES);
}

fn resident_mb(pid: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() / 1024
}

#[test]
fn mutated_streams_get_replies_or_a_closed_connection() {
    let log = TempFile::new("resp-log", "");
    let file = fs::File::create(log.path()).unwrap();
    let arguments = ["serve", "--http", "127.0.0.1:0", "--resp", "127.0.0.1:0"];
    let server = ServeProcess::start_with_log(slidegate().args(arguments), Stdio::from(file));
    let (address, pid) = (address_of(&server), server.pid().to_string());
    let (corpus, mut random) = (corpus(), SeededRandom::new(7));
    let mut initial_mb = 0;
    for round in 0..ROUNDS {
        let mut stream = corpus[random.below(corpus.len() as u64) as usize].clone();
        for _ in 0..random.below(5) {
            mutate(&mut stream, &mut random, &corpus);
        }
        let mut client = open(address);
        let (mut rest, mut replies) = (stream.as_slice(), Vec::new());
        while !rest.is_empty() {
            let length = (1 + random.below(rest.len() as u64)).min(1 + random.below(20_000)) as usize;
            // The server may have closed the connection.
            if client.write_all(&rest[..length]).is_err() {
                break;
            }
            rest = &rest[length..];
        }
        let _ = client.shutdown(Shutdown::Write);
        if let Err(error) = client.read_to_end(&mut replies) {
            let is_timeout =
                matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut);
            assert!(!is_timeout, "round {round}: the connection stays open after {stream:?}");
        }
        assert!(replies.is_empty() || b"+-:$*%".contains(&replies[0]), "round {round}: {replies:?}");
        if round == 100 {
            initial_mb = resident_mb(&pid);
        }
    }
    let logged = fs::read_to_string(log.path()).unwrap();
    assert!(!logged.contains("panicked"), "{logged}");
    let growth_mb = resident_mb(&pid).saturating_sub(initial_mb);
    assert!(growth_mb < MAX_GROWTH_MB, "{growth_mb} MB more");
}
