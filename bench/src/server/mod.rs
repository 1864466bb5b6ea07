//! The service beside an axum handler that only reads the same JSON and beside other limiters' servers, asked by wrk.
//! `make bench-server` starts it.

mod constant;
mod subject;

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use crate::figures::{Aim, Figures, Row};

pub(crate) use self::constant::constant;

use self::subject::{Question, Subject, peer};

const ROUNDS: usize = 7;
/// How many checks there are in a batch.
const BATCH: f64 = 100.0;

const CHECK: Question =
    Question { path: "/v1/check", body: r#"{"policy": "api", "key": "user:%06d", "cost": 1}"# };
const THROTTLE: Question = Question {
    path: "/throttle",
    body: r#"{"key": "user:%06d", "max_burst": 1000, "count_per_period": 1000, "period": 60, "quantity": 1}"#,
};
const CHECK_AND_REPORT: Question = Question {
    path: "/check_and_report",
    body: r#"{"namespace": "api", "values": {"key": "user:%06d"}, "delta": 1}"#,
};

/// Somebody beside the service, and what it was seen to do.
struct Beside {
    name: &'static str,
    aim: Aim,
    subject: Subject,
    rates: Figures,
    costs: Figures,
}

impl Beside {
    fn new(name: &'static str, aim: f64, subject: Subject) -> Self {
        let (rates, costs) = <[Figures; 2]>::default().into();
        Self { name, aim: Aim::AtLeast(aim), subject, rates, costs }
    }

    fn measure(&mut self) {
        let (rate, us) = self.subject.ask("1");
        self.rates.push(rate);
        self.costs.push(us);
    }
}

pub(crate) fn report() {
    let own = std::env::current_exe().expect("this program has a path");
    let service = PathBuf::from(&own).with_file_name("slidegate");
    let config = std::env::temp_dir().join(format!("slidegate-bench-{}.yaml", std::process::id()));
    fs::write(&config, "policies: {api: {quotas: [1000/1m]}}\nlog: {violations: 0}\n")
        .expect("a temporary file");
    let mut serve = Command::new(service);
    serve.args(["serve", "--http", "127.0.0.1:0", "--config"]).arg(&config);
    let ours = Subject::start(&serve, CHECK);
    let mut beside = [
        Beside::new(
            "an axum handler that reads the same JSON",
            0.9,
            Subject::start(Command::new(own).arg("server-constant"), CHECK),
        ),
        Beside::new(
            "throttlecrab's server",
            1.2,
            Subject::start_on_port(
                peer("throttlecrab-server").args(["--http", "--http-host", "127.0.0.1", "--http-port"]),
                THROTTLE,
            ),
        ),
        Beside::new("limitador over HTTP", 2.0, Subject::start(&peer("limitador-http"), CHECK_AND_REPORT)),
    ];
    let (mut rates, mut costs, mut batches) = <[Figures; 3]>::default().into();
    for round in 1..=ROUNDS {
        eprintln!("64 connections, 100 k keys, round {round} of {ROUNDS} …");
        let (rate, us) = ours.ask("1");
        rates.push(rate);
        costs.push(us);
        beside.iter_mut().for_each(Beside::measure);
        batches.push(ours.ask("100").0 * BATCH);
    }
    let _ = fs::remove_file(config);
    println!("medians (least to most)\n\n| | slidegate | beside it | ratio | aim |\n|---|---|---|---|---|");
    for Beside { name, aim, rates: theirs, costs: their_costs, .. } in beside {
        let row = |what: &str, here: &Figures, beside, aim| {
            println!("{}", Row { what: format!("{what}, {name}"), here: here.clone(), beside, aim });
        };
        row("requests/s", &rates, theirs, aim);
        row("server CPU µs each", &costs, their_costs, Aim::Open);
    }
    let what = "decisions/s in batches of 100, single requests".to_owned();
    println!("{}", Row { what, here: batches, beside: rates, aim: Aim::AtLeast(10.0) });
}
