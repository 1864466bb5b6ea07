//! Measures check times, memory, floods and instructions.
#![expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]

use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use crate::subjects::{Limit, Subject};
use crate::traffic::key;

/// Returns the nanoseconds per check of one thread while each thread checks its list of keys. The lists are read in
/// order, so each key is in the cache, like the key of a request that was just parsed.
pub(crate) fn time_round<S: Subject>(subject: &S, requests: &[Vec<String>]) -> f64 {
    let waiting = AtomicUsize::new(requests.len());
    let times: Vec<f64> = std::thread::scope(|scope| {
        let run = |mine: &'_ [String]| {
            // Spins instead of sleeping: a thread that wakes up late would start when the other has nearly finished.
            waiting.fetch_sub(1, Ordering::SeqCst);
            while waiting.load(Ordering::SeqCst) > 0 {
                std::hint::spin_loop();
            }
            let start = Instant::now();
            let mut allowed = 0;
            for key in mine {
                allowed += usize::from(subject.check(key));
            }
            std::hint::black_box(allowed);
            nanoseconds(start) / count(mine.len())
        };
        let threads: Vec<_> = requests.iter().map(|mine| scope.spawn(move || run(mine))).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    });
    times.iter().sum::<f64>() / count(times.len())
}

/// Returns the nanoseconds per check of one thread that checks 16 keys at a time.
pub(crate) fn time_round_of_16<S: Subject>(subject: &S, requests: &[String]) -> f64 {
    let start = Instant::now();
    let mut allowed = 0;
    for group in requests.as_chunks::<16>().0 {
        allowed += subject.check_16(&group.each_ref());
    }
    std::hint::black_box(allowed);
    nanoseconds(start) / count(requests.len())
}

/// Prints the resident bytes per key after one check of each of `keys` keys. Runs in its own process.
pub(crate) fn memory<S: Subject>(keys: usize) {
    let before = resident_bytes();
    let subject = S::new(Limit::Usual, keys);
    for number in 0..keys {
        subject.check(&key(number));
    }
    println!("{:.1}", count(resident_bytes() - before) / count(keys));
    drop(subject);
}

/// Floods a table for one million keys with ten million new keys. Prints the 99.99th percentile and the maximum of all
/// check times in microseconds, and the resident megabytes. Runs in its own process.
pub(crate) fn flood<S: Subject>(limit: Limit) {
    let before = resident_bytes();
    let subject = S::new(limit, 1_000_000);
    let times = each_timed(|key| {
        subject.check(key);
    });
    let taken = resident_bytes() - before - times.len() * size_of::<u32>();
    println!("{} {:.0}", longest(times), count(taken) / 1e6);
    drop(subject);
}

/// Runs the flood with multiplications of about the same duration in place of the check. Shows the interruptions that
/// come from the machine.
pub(crate) fn flood_of_nothing() {
    let mut number = 1_u64;
    let times = each_timed(|_| {
        for _ in 0..300 {
            number = std::hint::black_box(number.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        }
    });
    println!("{} –", longest(times));
}

fn each_timed(mut check: impl FnMut(&String)) -> Vec<u32> {
    let mut times = vec![0; 10_000_000];
    for (number, time) in times.iter_mut().enumerate() {
        let key = key(number);
        let start = Instant::now();
        check(&key);
        *time = u32::try_from(start.elapsed().as_nanos()).unwrap_or(u32::MAX);
    }
    times
}

fn longest(mut times: Vec<u32>) -> String {
    times.sort_unstable();
    let micros = |place: usize| f64::from(times[place]) / 1000.0;
    format!("{:.1} {:.0}", micros(times.len() - times.len() / 10_000), micros(times.len() - 1))
}

/// Checks one hot key under callgrind. Runs in its own process.
pub(crate) fn work<S: Subject>(limit: Limit, checks: usize) {
    let subject = S::new(limit, 1000);
    let hot = key(7);
    // Without `black_box`, the compiler hoists everything that depends on the constant key out of the loop.
    let allowed = (0..checks).filter(|_| subject.check(std::hint::black_box(&hot))).count();
    std::hint::black_box(allowed);
}

/// Returns the instructions per check of an allowed (`work`) or denied (`denied`) hot key. The difference between a
/// long and a short run cancels the setup. `None` without valgrind.
pub(crate) fn instructions(mode: &str, name: &str) -> Option<f64> {
    let total = |checks: usize| {
        let output = Command::new("valgrind")
            .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
            .arg(std::env::current_exe().ok()?)
            .args([mode, name, &checks.to_string()])
            .output()
            .ok()?;
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        let line = text.lines().find(|line| line.contains("Collected"))?;
        line.rsplit(' ').next()?.parse::<f64>().ok()
    };
    Some((total(1_200_000)? - total(200_000)?) / 1_000_000.0)
}

/// Runs this program as a child process with these arguments and returns its output.
pub(crate) fn child(words: &[&str]) -> String {
    let exe = std::env::current_exe().expect("this program has a path");
    let output = Command::new(exe).args(words).output().expect("the program starts");
    assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

fn resident_bytes() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("Linux reports VmRSS");
    line.split_whitespace().nth(1).and_then(|number| number.parse::<usize>().ok()).expect("a number") * 1024
}

#[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
fn count(number: usize) -> f64 {
    number as f64
}

fn nanoseconds(start: Instant) -> f64 {
    start.elapsed().as_secs_f64() * 1e9
}
