//! Envoy's rate limit service beside a handler with a constant response and beside Limitador's, measured with h2load.
//! `make bench-protocols` starts it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use slidegate_server::rls::proto::rate_limit_descriptor::Entry;
use slidegate_server::rls::proto::{RateLimitDescriptor, RateLimitRequest};

use crate::figures::{Aim, Figures, Row};
use crate::sample::{CALLERS_CORE, Server, cpu_s, output};

pub(crate) mod peers;

const ROUNDS: usize = 7;
const METHOD: &str = "envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
/// Above any rate that h2load reaches, so that every request is allowed.
const LIMITS: &str =
    "domain: bench\ndescriptors: [{key: user, rate_limit: {unit: second, requests_per_unit: 1000000}}]\n";

/// Rate limit server and its address.
struct Service {
    server: Server,
    address: String,
}

impl Service {
    /// Starts a server that prints `grpc: ` and its address on one line.
    fn start(command: &Command) -> Self {
        let mut server = Server::start(command);
        let address = server.lines().find_map(|line| line.strip_prefix("grpc: ").map(str::to_owned));
        Self { server, address: address.expect("the server prints its address") }
    }

    /// Returns the requests per second and the server CPU microseconds per request, over four connections with 16
    /// streams each.
    fn measure(&self, message: &Path, requests: u64) -> (f64, f64) {
        let before = cpu_s(self.server.id());
        let text = output(
            Command::new("taskset")
                .args(["-c", &CALLERS_CORE.to_string(), "h2load", "-t1", "-c4", "-m16", "-n"])
                .arg(requests.to_string())
                .args(["-H", "content-type: application/grpc", "-H", "te: trailers", "-d"])
                .arg(message)
                .arg(format!("http://{}/{METHOD}", self.address)),
        );
        let used = cpu_s(self.server.id()) - before;
        assert!(text.contains(&format!("{requests} succeeded")), "{text}");
        let rate = text.split("finished in ").nth(1).and_then(|rest| rest.split(", ").nth(1));
        let rate = rate.and_then(|rate| rate.trim_end_matches(" req/s").split(' ').next()?.parse().ok());
        #[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
        (rate.unwrap_or_else(|| panic!("{text}")), used * 1e6 / requests as f64)
    }
}

/// Encodes a request for one descriptor as a gRPC frame, as Envoy sends it.
fn message() -> Vec<u8> {
    let entry = Entry { key: b"user".to_vec(), value: b"user:000001".to_vec() };
    let descriptor = RateLimitDescriptor { entries: vec![entry], ..RateLimitDescriptor::default() };
    let request =
        RateLimitRequest { domain: b"bench".to_vec(), descriptors: vec![descriptor], hits_addend: 0 };
    let body = prost::Message::encode_to_vec(&request);
    let length = u32::try_from(body.len()).expect("the message is short");
    [&[0][..], &length.to_be_bytes(), &body].concat()
}

pub(crate) fn report() {
    let own = std::env::current_exe().expect("this program has a path");
    let service = PathBuf::from(&own).with_file_name("slidegate");
    let folder = std::env::temp_dir().join(format!("slidegate-bench-rls-{}", std::process::id()));
    fs::create_dir_all(&folder).expect("a temporary folder");
    let message_file = folder.join("message.bin");
    fs::write(&message_file, message()).expect("a temporary file");
    let limits = folder.join("limits.yaml");
    fs::write(&limits, LIMITS).expect("a temporary file");
    let slidegate = Service::start(
        Command::new(service)
            .args([
                "serve",
                "--http",
                "127.0.0.1:0",
                "--admin",
                "off",
                "--grpc",
                "127.0.0.1:0",
                "--envoy-config",
            ])
            .arg(&limits),
    );
    let constant = Service::start(Command::new(&own).arg("rls-constant"));
    let limitador = Service::start(Command::new(&own).arg("rls-limitador"));
    let servers = [&slidegate, &constant, &limitador];
    let mut rates = <[Figures; 3]>::default();
    let mut costs = <[Figures; 3]>::default();
    for server in servers {
        server.measure(&message_file, 20_000);
    }
    for round in 0..ROUNDS {
        eprintln!("4 connections, 16 streams each, round {} of {ROUNDS} …", round + 1);
        // Each round begins with a different server.
        for place in (0..3).map(|place| (place + round) % 3) {
            let (rate, us) = servers[place].measure(&message_file, 100_000);
            rates[place].push(rate);
            costs[place].push(us);
        }
    }
    let _ = fs::remove_dir_all(folder);
    let ([our_rate, constant_rate, limitador_rate], [our_us, constant_us, limitador_us]) = (rates, costs);
    println!("medians (least to most)\n\n| | slidegate | beside it | ratio | aim |\n|---|---|---|---|---|");
    let rows = [
        (
            "RLS requests/s, a tonic handler that returns a constant",
            our_rate.clone(),
            constant_rate,
            Aim::AtLeast(0.9),
        ),
        ("server CPU µs each, the same", our_us.clone(), constant_us, Aim::Open),
        ("RLS requests/s, Limitador's", our_rate, limitador_rate, Aim::AtLeast(1.2)),
        ("server CPU µs each, the same", our_us, limitador_us, Aim::Open),
    ];
    for (label, here, beside, aim) in rows {
        println!("{}", Row { label: label.to_owned(), here, beside, aim });
    }
}
