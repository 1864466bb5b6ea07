//! Streams of commands, whole and broken in every way: each is answered or ended, and nothing else happens.

use std::fs;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::path::Path;
use std::process::Stdio;

use super::gcra::Dice;
use super::{address_of, open};
use crate::process::{ServeProcess, TempFile, slidegate};

const ROUNDS: u64 = 1500;
const LONGEST: usize = 200_000;
/// What the server may grow by, be it what it may.
const MAX_MB: u64 = 64;

fn corpus() -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus/resp");
    let mut paths: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    let streams: Vec<_> = paths.iter().map(|path| fs::read(path).unwrap()).collect();
    assert!(streams.len() >= 5);
    streams
}

fn mutate(stream: &mut Vec<u8>, dice: &mut Dice, all: &[Vec<u8>]) {
    let at = dice.below(stream.len() as u64 + 1) as usize;
    match dice.below(7) {
        0 => stream.truncate(at),
        1 => stream.insert(at, dice.below(256) as u8),
        2 if at < stream.len() => stream[at] = dice.below(256) as u8,
        3 if at < stream.len() => drop(stream.remove(at)),
        4 => {
            let number =
                [b"-1".as_slice(), b"0", b"1024", b"1025", b"65536", b"99999999999999999999", b"\r\n"];
            stream.splice(at..at, number[dice.below(7) as usize].iter().copied());
        }
        5 => {
            let other = &all[dice.below(all.len() as u64) as usize];
            stream.extend_from_slice(&other[dice.below(other.len() as u64) as usize..]);
        }
        _ => {
            let from = dice.below(at as u64 + 1) as usize;
            let piece = stream[from..at].to_vec();
            stream.splice(at..at, piece);
        }
    }
    stream.truncate(LONGEST);
}

fn resident_mb(process: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() / 1024
}

#[test]
fn whatever_comes_is_answered_or_ended() {
    let log = TempFile::new("resp-log", "");
    let file = fs::File::create(log.path()).unwrap();
    let arguments = ["serve", "--http", "127.0.0.1:0", "--resp", "127.0.0.1:0"];
    let server = ServeProcess::start_with_log(slidegate().args(arguments), Stdio::from(file));
    let (address, process) = (address_of(&server), server.pid().to_string());
    let (all, mut dice) = (corpus(), Dice::new(7));
    let mut at_first_mb = 0;
    for round in 0..ROUNDS {
        let mut stream = all[dice.below(all.len() as u64) as usize].clone();
        for _ in 0..dice.below(5) {
            mutate(&mut stream, &mut dice, &all);
        }
        let mut client = open(address);
        let (mut rest, mut answer) = (stream.as_slice(), Vec::new());
        while !rest.is_empty() {
            let length = (1 + dice.below(rest.len() as u64)).min(1 + dice.below(20_000)) as usize;
            // It may have hung up.
            if client.write_all(&rest[..length]).is_err() {
                break;
            }
            rest = &rest[length..];
        }
        let _ = client.shutdown(Shutdown::Write);
        if let Err(error) = client.read_to_end(&mut answer) {
            let is_hung =
                matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut);
            assert!(!is_hung, "round {round}: no end after {stream:?}");
        }
        assert!(answer.is_empty() || b"+-:$*%".contains(&answer[0]), "round {round}: {answer:?}");
        if round == 100 {
            at_first_mb = resident_mb(&process);
        }
    }
    let said = fs::read_to_string(log.path()).unwrap();
    assert!(!said.contains("panicked"), "{said}");
    let grown_mb = resident_mb(&process).saturating_sub(at_first_mb);
    assert!(grown_mb < MAX_MB, "{grown_mb} MB more");
}
