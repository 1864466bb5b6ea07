//! What nobody would send on purpose: a corpus of requests, good and bad, changed at random and sent to the real binary.
//!
//! `make fuzz` does it for longer. A failure says its seed; `SLIDEGATE_FUZZ_SEED` begins there.

mod mutation;
mod responses;

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;
use std::{env, fs};

use serde_json::json;

use self::mutation::{changed, with_changed_body};
use crate::process::{ServeProcess, TempFile, slidegate};

/// Tables are small and patience is short, so that what grows or hangs is seen soon.
const CONFIG: &str = "
memory: {max_keys: 10000}
limits: {head_timeout: 100ms, body_timeout: 100ms}
trusted_proxies: [127.0.0.1/32]
policies:
  keyed: {quotas: [3/1m], key: {header: x-api-key}}
  both: {quotas: [3/1m], key: [address, {header: x-api-key}]}
  api: {quotas: [100/1m], tiers: {premium: {quotas: [1000/1m]}}}
  login: {quotas: [{limit: 2, window: 1s, name: burst}, 5/1d strict-window]}
";
const SENDERS: u64 = 16;
/// Whoever waits so long for a server that has a tenth of a second is held for good.
const HELD: Duration = Duration::from_mins(1);
/// What it may grow by: its table, and what an allocator keeps for later.
const MOST_GROWTH_KB: u64 = 64 << 10;

fn from_environment(name: &str, otherwise: u64) -> u64 {
    env::var(name).map_or(otherwise, |text| text.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}

/// In the order of their names, so that a seed means the same each time.
fn corpus() -> Vec<Vec<u8>> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/corpus/http");
    let mut files: Vec<_> = fs::read_dir(folder).unwrap().map(|file| file.unwrap().path()).collect();
    files.sort();
    files.iter().map(|file| fs::read(file).unwrap()).collect()
}

/// All that the server says until it hangs up.
fn exchange(url: &str, bytes: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(url.strip_prefix("http://").unwrap()).unwrap();
    stream.set_read_timeout(Some(HELD)).unwrap();
    // It may hang up before it has read all of it, and what it has said may then be lost.
    let is_sent = stream.write_all(bytes).is_ok();
    let mut said = Vec::new();
    match stream.read_to_end(&mut said) {
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => panic!("it is still connected"),
        Err(_) => said.clear(),
        Ok(_) if !is_sent => said.clear(),
        Ok(_) => {}
    }
    let _ = stream.shutdown(Shutdown::Both);
    said
}

fn try_one(url: &str, corpus: &[Vec<u8>], seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    let has_head_changed = random.bool();
    let bytes =
        if has_head_changed { changed(&mut random, corpus) } else { with_changed_body(&mut random, corpus) };
    let said = exchange(url, &bytes);
    let judged = responses::judge(&bytes, &said);
    let judged = judged.and_then(|answers| match answers {
        1 => Ok(()),
        _ if has_head_changed => Ok(()),
        // Too large to be read to its end, and hung up on.
        0 if said.is_empty() && bytes.len() > 1 << 16 => Ok(()),
        answers => Err(format!("{answers} answers to one request")),
    });
    if let Err(why) = judged {
        let (asked, said) = (bytes.escape_ascii(), said.escape_ascii());
        panic!("SLIDEGATE_FUZZ_SEED={seed} SLIDEGATE_FUZZ_CASES=1: {why}\n{asked}\nwas answered by\n{said}");
    }
}

fn resident_kb(server: &ServeProcess) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", server.pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

#[test]
fn whatever_is_sent_it_is_answered_properly_or_not_at_all() {
    let cases = from_environment("SLIDEGATE_FUZZ_CASES", 1500);
    let first = from_environment("SLIDEGATE_FUZZ_SEED", 1);
    let (corpus, config) = (corpus(), TempFile::new("fuzzing", CONFIG));
    let log = TempFile::new("fuzzing-log", "");
    let to_file = Stdio::from(fs::File::create(log.path()).unwrap());
    let mut command = slidegate();
    command.args(["serve", "--http", "127.0.0.1:0", "--config", config.path()]);
    let server = ServeProcess::start_with_log(&mut command, to_file);
    for bytes in &corpus {
        responses::judge(bytes, &exchange(server.url(), bytes)).unwrap();
    }
    let before_kb = resident_kb(&server);
    std::thread::scope(|scope| {
        for sender in 0..SENDERS.min(cases) {
            let (url, corpus) = (server.url(), &corpus);
            scope.spawn(move || {
                for seed in (first + sender..first + cases).step_by(SENDERS as usize) {
                    try_one(url, corpus, seed);
                }
            });
        }
    });
    let grown_kb = resident_kb(&server).saturating_sub(before_kb);
    assert!(grown_kb < MOST_GROWTH_KB, "{grown_kb} kB more than before");
    server.check(&json!({"policy": "api", "key": "somebody else"})).decision();
    let said = fs::read_to_string(log.path()).unwrap();
    assert!(!said.contains("panicked"), "{said}");
}
