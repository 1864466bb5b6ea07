//! How long each part of a request takes.

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};

use slidegate::Verb;

use crate::stopwatch::Stopwatch;

/// From 50 µs to a second, which is more than any budget: microseconds, and the same as Prometheus has it.
const BOUNDS: [(u64, &str); 14] = [
    (50, "0.00005"),
    (100, "0.0001"),
    (200, "0.0002"),
    (500, "0.0005"),
    (1_000, "0.001"),
    (2_000, "0.002"),
    (5_000, "0.005"),
    (10_000, "0.01"),
    (20_000, "0.02"),
    (50_000, "0.05"),
    (100_000, "0.1"),
    (200_000, "0.2"),
    (500_000, "0.5"),
    (1_000_000, "1"),
];
const NAME: &str = "slidegate_request_seconds";
const HELP: &str = "How long requests took: to read them, to decide them, and altogether";

/// Of all requests of this process.
static OF_VERBS: [RequestTimings; 6] = [const { RequestTimings::new() }; 6];
const VERBS: [(Verb, &str); 6] = [
    (Verb::Check, "check"),
    (Verb::Peek, "peek"),
    (Verb::Charge, "charge"),
    (Verb::Refund, "refund"),
    (Verb::Reset, "reset"),
    (Verb::Block, "block"),
];

/// What takes its time beside these, as a whole.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Task {
    ForwardAuth,
    ShouldRateLimit,
    /// All that was read from a connection and is answered together.
    Resp,
    Throttle,
}

static OF_TASKS: [Histogram; 4] = [const { Histogram::new() }; 4];
const TASKS: [&str; 4] = ["forward-auth", "should-rate-limit", "resp", "throttle"];

impl Task {
    /// It is done.
    pub(crate) fn record(self, from: Stopwatch) {
        OF_TASKS[self as usize].record(from, Stopwatch::start());
    }
}

/// How long requests with one verb took.
///
/// Counters and no handles of the recorder: that keeps every single measurement until somebody comes to sum up, which
/// costs more than to count.
pub(super) struct RequestTimings {
    pub(super) read: Histogram,
    pub(super) decide: Histogram,
    pub(super) whole: Histogram,
}

impl RequestTimings {
    const fn new() -> Self {
        Self { read: Histogram::new(), decide: Histogram::new(), whole: Histogram::new() }
    }

    pub(super) fn of(verb: Verb) -> &'static Self {
        let place = VERBS.iter().position(|(other, _)| *other == verb).unwrap_or_default();
        &OF_VERBS[place]
    }
}

/// How often something took how long.
pub(super) struct Histogram {
    counts: [AtomicU64; BOUNDS.len() + 1],
    sum_ns: AtomicU64,
}

impl Histogram {
    const fn new() -> Self {
        Self { counts: [const { AtomicU64::new(0) }; BOUNDS.len() + 1], sum_ns: AtomicU64::new(0) }
    }

    /// What passed between the two.
    pub(super) fn record(&self, from: Stopwatch, to: Stopwatch) {
        let ns = from.ns_until(to);
        let us = ns.div_ceil(1000);
        let place = BOUNDS.iter().position(|(most, _)| us <= *most).unwrap_or(BOUNDS.len());
        self.counts[place].fetch_add(1, Ordering::Relaxed);
        self.sum_ns.fetch_add(ns, Ordering::Relaxed);
    }

    fn render(&self, text: &mut String, labels: &str) {
        let mut count = 0;
        let bounds = BOUNDS.iter().map(|(_, seconds)| *seconds).chain(["+Inf"]);
        for (more, bound) in self.counts.iter().zip(bounds) {
            count += more.load(Ordering::Relaxed);
            let _ = writeln!(text, "{NAME}_bucket{{{labels},le=\"{bound}\"}} {count}");
        }
        let sum_ns = self.sum_ns.load(Ordering::Relaxed);
        let (seconds, ns) = (sum_ns / 1_000_000_000, sum_ns % 1_000_000_000);
        let _ = writeln!(text, "{NAME}_sum{{{labels}}} {seconds}.{ns:09}");
        let _ = writeln!(text, "{NAME}_count{{{labels}}} {count}");
    }
}

/// Appends all of it as Prometheus reads it.
pub(super) fn render(text: &mut String) {
    let _ = writeln!(text, "# HELP {NAME} {HELP}\n# TYPE {NAME} histogram");
    for ((_, verb), stages) in VERBS.iter().zip(&OF_VERBS) {
        let RequestTimings { read, decide, whole } = stages;
        for (stage, histogram) in [("read", read), ("decide", decide), ("whole", whole)] {
            histogram.render(text, &format!("verb=\"{verb}\",stage=\"{stage}\""));
        }
    }
    for (task, histogram) in TASKS.iter().zip(&OF_TASKS) {
        histogram.render(text, &format!("verb=\"{task}\",stage=\"whole\""));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_takes_as_long_as_a_bound_is_within_it() {
        let (histogram, start) = (Histogram::new(), Stopwatch::start());
        for us in [0, 50, 51, 1_000_000, 1_000_001] {
            histogram.record(start, start.after_us(us));
        }
        let mut text = String::new();
        histogram.render(&mut text, "a=\"b\"");
        for line in [
            r#"slidegate_request_seconds_bucket{a="b",le="0.00005"} 2"#,
            r#"slidegate_request_seconds_bucket{a="b",le="0.0001"} 3"#,
            r#"slidegate_request_seconds_bucket{a="b",le="0.5"} 3"#,
            r#"slidegate_request_seconds_bucket{a="b",le="1"} 4"#,
            r#"slidegate_request_seconds_bucket{a="b",le="+Inf"} 5"#,
            r#"slidegate_request_seconds_sum{a="b"} 2.000102000"#,
            r#"slidegate_request_seconds_count{a="b"} 5"#,
        ] {
            assert!(text.lines().any(|other| other == line), "{line} in {text}");
        }
    }
}
