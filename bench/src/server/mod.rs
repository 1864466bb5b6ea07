//! The service beside an axum handler that only reads the same JSON and beside other limiters' servers. `make
//! bench-server` starts it.
//!
//! Two clients measure it: wrk, and our own load generator, because wrk fills its core before it fills that of a fast
//! server.

mod bytes;
mod constant;
mod subject;

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use crate::figures::{Aim, Figures, Row};
use crate::sample::{CALLERS_CORE, Sample, pin};

pub(crate) use self::bytes::bytes;
pub(crate) use self::constant::constant;

use self::subject::{Endpoint, Subject, peer};

const ROUNDS: usize = 7;
/// Checks per batch.
const BATCH: f64 = 100.0;

const CHECK: Endpoint =
    Endpoint { path: "/v1/check", body: r#"{"policy": "api", "key": "user:%06d", "cost": 1}"# };
const THROTTLE: Endpoint = Endpoint {
    path: "/throttle",
    body: r#"{"key": "user:%06d", "max_burst": 1000, "count_per_period": 1000, "period": 60, "quantity": 1}"#,
};
const CHECK_AND_REPORT: Endpoint = Endpoint {
    path: "/check_and_report",
    body: r#"{"namespace": "api", "values": {"key": "user:%06d"}, "delta": 1}"#,
};

/// Server and its figures.
struct Column {
    subject: Subject,
    by_wrk: Rates,
    by_us: Rates,
}

#[derive(Default)]
struct Rates {
    rates: Figures,
    costs: Figures,
}

impl Rates {
    fn push(&mut self, sample: &Sample) {
        self.rates.push(sample.per_second);
        self.costs.push(sample.server_us);
    }
}

impl Column {
    fn new(subject: Subject) -> Self {
        Self { subject, by_wrk: Rates::default(), by_us: Rates::default() }
    }

    fn measure(&mut self, shares: &mut Figures) {
        self.by_wrk.push(&self.subject.measure_with_wrk("1"));
        let measured = self.subject.measure();
        self.by_us.push(&measured.sample);
        shares.push(measured.callers_share);
    }
}

/// Peer of the service.
struct Beside {
    name: &'static str,
    aim: Aim,
    column: Column,
}

impl Beside {
    fn new(name: &'static str, aim: Aim, subject: Subject) -> Self {
        Self { name, aim, column: Column::new(subject) }
    }

    /// Prints the rows of this peer beside those of Slidegate.
    fn print(&self, slidegate: &Column) {
        let row = |label: &str, here: &Figures, beside: &Figures, aim| {
            let label = format!("{label}, {}", self.name);
            println!("{}", Row { label, here: here.clone(), beside: beside.clone(), aim });
        };
        let Column { by_wrk, by_us, .. } = &self.column;
        row("requests/s by wrk", &slidegate.by_wrk.rates, &by_wrk.rates, self.aim);
        row("server CPU µs each", &slidegate.by_wrk.costs, &by_wrk.costs, Aim::Open);
        row("requests/s by our own callers", &slidegate.by_us.rates, &by_us.rates, self.aim);
        row("server CPU µs each", &slidegate.by_us.costs, &by_us.costs, Aim::Open);
    }
}

pub(crate) fn report() {
    pin(std::process::id(), CALLERS_CORE);
    let own = std::env::current_exe().expect("this program has a path");
    let service = PathBuf::from(&own).with_file_name("slidegate");
    let config = std::env::temp_dir().join(format!("slidegate-bench-{}.yaml", std::process::id()));
    fs::write(&config, "policies: {api: {quotas: [1000/1m]}}\nlog: {violations: 0}\n")
        .expect("a temporary file");
    let mut serve = Command::new(service);
    serve.args(["serve", "--http", "127.0.0.1:0", "--config"]).arg(&config);
    let mut slidegate = Column::new(Subject::start(&serve, CHECK));
    let mut beside = [
        Beside::new(
            "an axum handler that reads the same JSON",
            Aim::AtLeast(0.9),
            Subject::start(Command::new(&own).arg("server-constant"), CHECK),
        ),
        Beside::new(
            "throttlecrab's server",
            Aim::AtLeast(1.2),
            Subject::start_on_port(
                peer("throttlecrab-server").args(["--http", "--http-host", "127.0.0.1", "--http-port"]),
                THROTTLE,
            ),
        ),
        Beside::new(
            "limitador over HTTP",
            Aim::AtLeast(2.0),
            Subject::start(&peer("limitador-http"), CHECK_AND_REPORT),
        ),
        Beside::new(
            "a server that only receives and sends",
            Aim::Open,
            Subject::start(Command::new(own).arg("server-bytes"), CHECK),
        ),
    ];
    let (mut batches, mut shares) = <[Figures; 2]>::default().into();
    for round in 1..=ROUNDS {
        eprintln!("64 connections, 100 k keys, round {round} of {ROUNDS} …");
        slidegate.measure(&mut shares);
        for beside in &mut beside {
            beside.column.measure(&mut shares);
        }
        batches.push(slidegate.subject.measure_with_wrk("100").per_second * BATCH);
    }
    let _ = fs::remove_file(config);
    println!("medians (least to most)\n\n| | slidegate | beside it | ratio | aim |\n|---|---|---|---|---|");
    for beside in &beside {
        beside.print(&slidegate);
    }
    let label = "decisions/s in batches of 100, single requests, by wrk".to_owned();
    println!("{}", Row { label, here: batches, beside: slidegate.by_wrk.rates, aim: Aim::AtLeast(10.0) });
    println!("\nOur own callers took {shares} of their core.");
}
