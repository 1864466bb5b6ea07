//! Metrics of requests: histograms of their durations, and counts of those without a decision.

use std::fmt::{Display, Write};
use std::sync::atomic::{AtomicU64, Ordering};

use metrics::counter;
use quanta::Instant;
use slidegate::Verb;
use slidegate_engine::{Rejection, RejectionKind};
use tracing::debug;

/// A point in time, to be compared with a later one. No decision depends on it.
///
/// Each request takes several readings, so they use the processor's time-stamp counter where it is invariant: a reading
/// takes half the time of a reading of the system clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stopwatch(Instant);

impl Stopwatch {
    #[expect(clippy::disallowed_methods, reason = "the one reading of a clock in the service")]
    pub(crate) fn start() -> Self {
        Self(Instant::now())
    }

    /// Returns the nanoseconds between the two points, saturating; 0 if `later` is earlier.
    fn ns_until(self, later: Self) -> u64 {
        u64::try_from(later.0.saturating_duration_since(self.0).as_nanos()).unwrap_or(u64::MAX)
    }
}

/// Counts and logs a rejected request.
pub(crate) fn record_rejection(rejection: &Rejection) {
    record_rejection_of(rejection.kind, rejection);
}

/// Counts and logs a request that was rejected for a reason in words.
pub(crate) fn record_rejection_of(kind: RejectionKind, reason: impl Display) {
    debug!(?kind, %reason, "rejected a request");
    counter!("slidegate_refusals_total", "reason" => kind.name()).increment(1);
}

/// Upper bounds of the buckets, in microseconds and as Prometheus labels in seconds. No budget exceeds one second.
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
const HELP: &str = "Duration of requests by verb and stage";

/// Timings of this process, in the order of [`Verb::ALL`].
static BY_VERB: [RequestTimings; Verb::ALL.len()] = [const { RequestTimings::new() }; Verb::ALL.len()];

/// Work that is measured in total only.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Task {
    ForwardAuth,
    ShouldRateLimit,
    /// Commands of one RESP connection that were read together.
    Resp,
    Throttle,
}

/// Histograms of this process, in the order of `TASKS`.
static BY_TASK: [Histogram; 4] = [const { Histogram::new() }; 4];
const TASKS: [&str; 4] = ["forward-auth", "should-rate-limit", "resp", "throttle"];

impl Task {
    /// Records the time since `start`.
    pub(crate) fn record(self, start: Stopwatch) {
        BY_TASK[self as usize].record(start, Stopwatch::start());
    }
}

/// Durations of the requests with one verb.
///
/// Counts into buckets itself: the metrics recorder stores every measurement until the next scrape, which costs more.
pub(crate) struct RequestTimings {
    pub(crate) read: Histogram,
    pub(crate) decide: Histogram,
    /// Reported as the stage `whole`.
    pub(crate) total: Histogram,
}

impl RequestTimings {
    const fn new() -> Self {
        Self { read: Histogram::new(), decide: Histogram::new(), total: Histogram::new() }
    }

    pub(crate) fn of(verb: Verb) -> &'static Self {
        let index = Verb::ALL.iter().position(|other| *other == verb).unwrap_or_default();
        &BY_VERB[index]
    }
}

/// Histogram of durations.
pub(crate) struct Histogram {
    counts: [AtomicU64; BOUNDS.len() + 1],
    sum_ns: AtomicU64,
}

impl Histogram {
    const fn new() -> Self {
        Self { counts: [const { AtomicU64::new(0) }; BOUNDS.len() + 1], sum_ns: AtomicU64::new(0) }
    }

    /// Records the time between two stopwatches.
    pub(crate) fn record(&self, start: Stopwatch, end: Stopwatch) {
        let ns = start.ns_until(end);
        let us = ns.div_ceil(1000);
        let bucket = BOUNDS.iter().position(|(bound, _)| us <= *bound).unwrap_or(BOUNDS.len());
        self.counts[bucket].fetch_add(1, Ordering::Relaxed);
        self.sum_ns.fetch_add(ns, Ordering::Relaxed);
    }

    fn render(&self, text: &mut String, labels: &str) {
        let mut count = 0;
        let bounds = BOUNDS.iter().map(|(_, seconds)| *seconds).chain(["+Inf"]);
        for (bucket, bound) in self.counts.iter().zip(bounds) {
            count += bucket.load(Ordering::Relaxed);
            let _ = writeln!(text, "{NAME}_bucket{{{labels},le=\"{bound}\"}} {count}");
        }
        let sum_ns = self.sum_ns.load(Ordering::Relaxed);
        let (seconds, ns) = (sum_ns / 1_000_000_000, sum_ns % 1_000_000_000);
        let _ = writeln!(text, "{NAME}_sum{{{labels}}} {seconds}.{ns:09}");
        let _ = writeln!(text, "{NAME}_count{{{labels}}} {count}");
    }
}

/// Appends all histograms in the text format of Prometheus.
pub(crate) fn render(text: &mut String) {
    let _ = writeln!(text, "# HELP {NAME} {HELP}\n# TYPE {NAME} histogram");
    for (verb, timings) in Verb::ALL.iter().zip(&BY_VERB) {
        let RequestTimings { read, decide, total } = timings;
        for (stage, histogram) in [("read", read), ("decide", decide), ("whole", total)] {
            histogram.render(text, &format!("verb=\"{verb}\",stage=\"{stage}\""));
        }
    }
    for (task, histogram) in TASKS.iter().zip(&BY_TASK) {
        histogram.render(text, &format!("verb=\"{task}\",stage=\"whole\""));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_bucket_includes_its_upper_bound() {
        let (histogram, start) = (Histogram::new(), Stopwatch::start());
        for us in [0, 50, 51, 1_000_000, 1_000_001] {
            histogram.record(start, Stopwatch(start.0 + Duration::from_micros(us)));
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
