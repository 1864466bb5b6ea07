//! Published figures that do not depend on speed: bytes per log entry, and throughput of a strict window.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod oracle;

use oracle::Key;
use slidegate_core::State;

/// Seeded generator, so that the figures are the same on every machine.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

#[test]
fn a_log_takes_at_most_three_bytes_an_entry_at_1000_a_minute() {
    let mut random = Random(42);
    let mut key = Key::parse(&["1000/1m sliding-log"]);
    let mut now = 0;
    let mut largest = 0;
    // Ten minutes of arrivals 60 ms apart on average.
    for _ in 0..10_000 {
        now += random.below(121);
        let _ = key.check(now, 1);
        let used = key.peek(now, 0).quotas()[0].used;
        let State::SlidingLog(log) = &key.states[0] else { panic!("not a log") };
        if used >= 900 {
            largest = largest.max(log.heap_bytes() * 1000 / usize::try_from(used).unwrap());
        }
    }
    println!("{largest} bytes for 1000 entries");
    assert!(largest > 0 && largest <= 3000, "{largest} bytes for 1000 entries");
}

/// Returns the admissions of a strict window per 1000 admissions of an exact log, under the same arrivals.
fn strict_per_mille(arrivals: &[u64], limit: u64) -> u64 {
    let admitted = |algorithm: &str| {
        let mut key = Key::parse(&[&format!("{limit}/1m {algorithm}")]);
        let count = arrivals.iter().filter(|now| key.check(**now, 1).is_allowed()).count();
        u64::try_from(count).unwrap()
    };
    admitted("strict-window") * 1000 / admitted("sliding-log")
}

/// Returns `count` arrivals with random gaps of less than `gap_ms`.
fn steady(count: u64, gap_ms: u64) -> Vec<u64> {
    let mut random = Random(7);
    let mut now = 0;
    (0..count)
        .map(|_| {
            now += random.below(gap_ms);
            now
        })
        .collect()
}

/// Returns bursts of `count` arrivals within one second, every ten seconds.
fn bursts(count: u64) -> Vec<u64> {
    let mut random = Random(9);
    let burst = |number: u64, random: &mut Random| {
        let mut at: Vec<u64> = (0..count).map(|_| number * 10_000 + random.below(1000)).collect();
        at.sort_unstable();
        at
    };
    (0..180).flat_map(|number| burst(number, &mut random)).collect()
}

#[test]
fn a_strict_window_keeps_most_of_the_exact_throughput() {
    let table = [
        ("1.5 times the limit, steady", steady(45_000, 81), 950),
        ("3 times the limit, steady", steady(90_000, 41), 970),
        ("12 times the limit, steady", steady(90_000, 11), 990),
        ("1.2 times the limit, in bursts", bursts(200), 930),
        ("3 times the limit, in bursts", bursts(500), 980),
        ("within the limit, in bursts", bursts(150), 990),
    ];
    for (traffic, arrivals, floor) in table {
        let kept = strict_per_mille(&arrivals, 1000);
        println!("{traffic}: {kept} of 1000");
        assert!(kept >= floor, "{traffic}: {kept} of 1000");
    }
}
