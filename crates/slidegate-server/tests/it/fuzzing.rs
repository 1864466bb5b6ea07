//! Fuzzing over HTTP: mutates a corpus of valid and invalid requests and sends it to the real binary.
//!
//! `make fuzz` runs more cases. A failure prints its seed; `SLIDEGATE_FUZZ_SEED` starts with that seed.

mod mutation;
mod responses;

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;
use std::{env, fs};

use serde_json::json;

use self::mutation::{mutated, with_mutated_body};
use crate::process::{ServeProcess, TempFile, slidegate};

/// Small tables and short timeouts, so that growth and hangs show early.
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
/// Read timeout after which a connection counts as hung. The timeouts of the server are 100 ms.
const HANG_TIMEOUT: Duration = Duration::from_mins(1);
/// Allowed growth of memory: the table of keys and the reserves of the allocator.
const MAX_GROWTH_KB: u64 = 64 << 10;

fn from_environment(name: &str, default: u64) -> u64 {
    env::var(name).map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}

/// Reads the corpus in the order of file names, so that a seed always gives the same requests.
fn corpus() -> Vec<Vec<u8>> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/corpus/http");
    let mut files: Vec<_> = fs::read_dir(folder).unwrap().map(|file| file.unwrap().path()).collect();
    files.sort();
    files.iter().map(|file| fs::read(file).unwrap()).collect()
}

/// Sends `bytes` and returns the response bytes up to the end of the connection.
fn exchange(url: &str, bytes: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(url.strip_prefix("http://").unwrap()).unwrap();
    stream.set_read_timeout(Some(HANG_TIMEOUT)).unwrap();
    // If the server closes before it has read everything, a reset may discard its response.
    let is_sent = stream.write_all(bytes).is_ok();
    let mut received = Vec::new();
    match stream.read_to_end(&mut received) {
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => panic!("the connection hangs"),
        Err(_) => received.clear(),
        Ok(_) if !is_sent => received.clear(),
        Ok(_) => {}
    }
    let _ = stream.shutdown(Shutdown::Both);
    received
}

fn run_case(url: &str, corpus: &[Vec<u8>], seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    let mutates_head = random.bool();
    let bytes =
        if mutates_head { mutated(&mut random, corpus) } else { with_mutated_body(&mut random, corpus) };
    let received = exchange(url, &bytes);
    let checked = responses::check_responses(&bytes, &received);
    let checked = checked.and_then(|count| match count {
        1 => Ok(()),
        _ if mutates_head => Ok(()),
        // Too large: the server closes before it has read the body.
        0 if received.is_empty() && bytes.len() > 1 << 16 => Ok(()),
        count => Err(format!("{count} responses to one request")),
    });
    if let Err(reason) = checked {
        let (request, response) = (bytes.escape_ascii(), received.escape_ascii());
        panic!(
            "SLIDEGATE_FUZZ_SEED={seed} SLIDEGATE_FUZZ_CASES=1: {reason}\nrequest:\n{request}\nresponse:\n{response}"
        );
    }
}

fn resident_kb(server: &ServeProcess) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", server.pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

#[test]
fn mutated_requests_get_valid_responses_or_none() {
    let cases = from_environment("SLIDEGATE_FUZZ_CASES", 1500);
    let first = from_environment("SLIDEGATE_FUZZ_SEED", 1);
    let (corpus, config) = (corpus(), TempFile::new("fuzzing", CONFIG));
    let log = TempFile::new("fuzzing-log", "");
    let to_file = Stdio::from(fs::File::create(log.path()).unwrap());
    let mut command = slidegate();
    command.args(["serve", "--http", "127.0.0.1:0", "--config", config.path()]);
    let server = ServeProcess::start_with_log(&mut command, to_file);
    for bytes in &corpus {
        responses::check_responses(bytes, &exchange(server.url(), bytes)).unwrap();
    }
    let before_kb = resident_kb(&server);
    std::thread::scope(|scope| {
        for sender in 0..SENDERS.min(cases) {
            let (url, corpus) = (server.url(), &corpus);
            scope.spawn(move || {
                for seed in (first + sender..first + cases).step_by(SENDERS as usize) {
                    run_case(url, corpus, seed);
                }
            });
        }
    });
    let growth_kb = resident_kb(&server).saturating_sub(before_kb);
    assert!(growth_kb < MAX_GROWTH_KB, "{growth_kb} kB more than before");
    server.check(&json!({"policy": "api", "key": "another client"})).decision();
    let logged = fs::read_to_string(log.path()).unwrap();
    assert!(!logged.contains("panicked"), "{logged}");
}
