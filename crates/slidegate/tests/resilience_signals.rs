//! Metrics and log events of the degradation layer. The test runs in its own process because `tracing` caches for the
//! whole process whether an event has a subscriber.

#![cfg(feature = "resilience")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[path = "resilience/faulty.rs"]
#[allow(dead_code, reason = "other tests need more of it")]
mod faulty;

use std::collections::BTreeMap;
use std::fmt::{self, Write};
use std::sync::{Arc, Mutex};

use metrics::{
    Counter, CounterFn, Gauge, GaugeFn, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit,
};
use slidegate::Policy;
use slidegate::resilience::{Fallback, Mode, Switch};
use slidegate::store::StoreLimiter;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Subscriber};

use faulty::{Fault, FaultyStore, VirtualClock, sleep};

/// Values of all counters and gauges, by name and labels.
#[derive(Clone, Debug, Default)]
struct Recorded(Arc<Mutex<BTreeMap<String, f64>>>);

impl Recorded {
    fn number(&self, name: &str) -> f64 {
        let recorded = self.0.lock().unwrap();
        *recorded.get(name).unwrap_or_else(|| panic!("{name} is not among {recorded:#?}"))
    }

    fn cell(&self, key: &Key) -> Cell {
        let labels: Vec<String> =
            key.labels().map(|label| format!("{}={}", label.key(), label.value())).collect();
        Cell { recorded: self.clone(), name: format!("{}{{{}}}", key.name(), labels.join(",")) }
    }
}

struct Cell {
    recorded: Recorded,
    name: String,
}

impl Cell {
    fn set(&self, change: impl FnOnce(f64) -> f64) {
        let mut recorded = self.recorded.0.lock().unwrap();
        let number = recorded.entry(self.name.clone()).or_default();
        *number = change(*number);
    }
}

#[allow(clippy::float_arithmetic, clippy::cast_precision_loss, reason = "the facade's gauges are floats")]
mod cells {
    use super::{Cell, CounterFn, GaugeFn};

    impl CounterFn for Cell {
        fn increment(&self, value: u64) {
            self.set(|number| number + value as f64);
        }

        fn absolute(&self, value: u64) {
            self.set(|_| value as f64);
        }
    }

    impl GaugeFn for Cell {
        fn increment(&self, value: f64) {
            self.set(|number| number + value);
        }

        fn decrement(&self, value: f64) {
            self.set(|number| number - value);
        }

        fn set(&self, value: f64) {
            self.set(|_| value);
        }
    }
}

impl Recorder for Recorded {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(Arc::new(self.cell(key)))
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(Arc::new(self.cell(key)))
    }

    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}

/// The fields of each event, one line per event.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<String>>>);

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let _ = write!(self.0, "{field}={value:?} ");
    }
}

impl Subscriber for Log {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = Line(String::new());
        event.record(&mut line);
        if event.metadata().target().starts_with("slidegate") {
            self.0.lock().unwrap().push(format!("{}: {}", event.metadata().level(), line.0));
        }
    }

    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

#[test]
fn every_transition_is_an_event_and_a_metric() {
    let (recorded, log) = (Recorded::default(), Log::default());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    metrics::with_local_recorder(&recorded, || {
        tracing::subscriber::with_default(log.clone(), || runtime.unwrap().block_on(run_scenario()));
    });
    for (name, expected) in [
        ("slidegate_breaker_transitions_total{policy=(others),to=open}", 2.0),
        ("slidegate_breaker_transitions_total{policy=(others),to=probing}", 2.0),
        ("slidegate_breaker_transitions_total{policy=(others),to=recovering}", 1.0),
        ("slidegate_breaker_transitions_total{policy=(others),to=closed}", 1.0),
        ("slidegate_breaker_state{policy=(others),state=closed}", 1.0),
        ("slidegate_breaker_state{policy=(others),state=open}", 0.0),
        ("slidegate_fallback_total{policy=api,mode=local,reason=unavailable}", 6.0),
        // Without the fallback decisions made while the breaker is open.
        ("slidegate_store_errors_total{kind=transient}", 6.0),
        ("slidegate_fallback_total{policy=(in request),mode=local,reason=resting}", 1.0),
        ("slidegate_ruled_total{policy=api,rule=off}", 1.0),
        ("slidegate_shadow_denials_total{policy=api,by=policy,source=store}", 1.0),
        ("slidegate_switched_total{policy=api,to=off}", 1.0),
    ] {
        assert!(
            (recorded.number(name) - expected).abs() < 0.5,
            "{name}: {} and not {expected}",
            recorded.number(name)
        );
    }
    let lines = log.0.lock().unwrap().join("\n");
    for expected in [
        "the store failed; on_failure decides policy=\"api\" mode=\"local\" reason=\"unavailable\" error=\"down\"",
        "the store decides again",
        "WARN: message=the store fails; the breaker opens and sends it no requests policy=\"(others)\" from=\"closed\" to=\"open\"",
        "DEBUG: message=the breaker sends one request at a time to the store policy=\"(others)\" from=\"open\" to=\"probing\"",
        "DEBUG: message=the store still fails; the breaker stays open for longer policy=\"(others)\" from=\"probing\" to=\"open\"",
        "INFO: message=the store responds again and gets a growing share of requests policy=\"(others)\" from=\"probing\" to=\"recovering\"",
        "INFO: message=the store has recovered policy=\"(others)\" from=\"recovering\" to=\"closed\"",
        "policy=\"api\" from=\"enforce\" to=\"off\"",
        "policy=\"api\" from=\"off\" to=\"shadow\"",
    ] {
        assert!(lines.contains(expected), "{expected} is not in\n{lines}");
    }
}

/// The store fails, the breaker opens, a probe fails, and the store recovers. Then the policy is switched to off and to
/// shadow.
async fn run_scenario() {
    let clock = VirtualClock::new();
    let up_from_ms = 1_800_000_001_500;
    let store = FaultyStore::new(clock, move || {
        if slidegate::Clock::now_ms(&clock) < up_from_ms { Fault::Down } else { Fault::None }
    });
    let limiter = StoreLimiter::new(Switch::new(Fallback::builder(store).clock(clock).build().unwrap()));
    let api = Policy::parse("api", ["100/1h"]).unwrap();
    for _ in 0..5 {
        let _ = limiter.check(api.key("k")).await.unwrap();
        sleep(25).await;
    }
    let anonymous = Policy::anonymous(["100/1h".parse().unwrap()]).unwrap();
    let _ = limiter.check(anonymous.key("k")).await.unwrap();
    for _ in 0..20 {
        sleep(1000).await;
        let _ = limiter.check(api.key("other")).await.unwrap();
    }
    limiter.store().update("api", |switch| switch.mode = Mode::Off);
    let _ = limiter.check(api.key("k")).await.unwrap();
    limiter.store().update("api", |switch| switch.mode = Mode::Shadow);
    assert!(limiter.check(api.key("k").cost(101)).await.unwrap().is_allowed());
}
