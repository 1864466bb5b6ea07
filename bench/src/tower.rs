//! The layer in an axum hello-world beside that of `tower_governor`, without a socket. `make bench-tower` starts it.
#![expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Instant;

use axum::Router;
use axum::body::Body;
use axum::extract::{ConnectInfo, Request};
use axum::http::StatusCode;
use axum::routing::get;
use slidegate::Limiter;
use slidegate::tower::{HeaderStyle, RateLimitLayer};
use tower::Service;
use tower_governor::GovernorLayer;
use tower_governor::governor::GovernorConfigBuilder;

use crate::figures::Figures;

const ROUNDS: usize = 21;
const REQUESTS: usize = 20_000;
/// Target: time that the layer adds at the median.
const AIM_NS: f64 = 1500.0;

const BARE: &str = "no layer";
const SLIDEGATE: &str = "slidegate";
const LEGACY: &str = "slidegate, `X-RateLimit-*`";
const GOVERNOR: &str = "tower_governor";
/// The bare router comes first; it is the baseline of the others.
const SUBJECTS: [&str; 4] = [BARE, SLIDEGATE, LEGACY, GOVERNOR];

/// Number of client addresses, and a quota that none of them reaches.
#[derive(Clone, Copy)]
struct Scenario {
    clients: usize,
    quota: &'static str,
}

const SCENARIOS: [Scenario; 2] =
    [Scenario { clients: 1, quota: "1000000000/1h" }, Scenario { clients: 1000, quota: "1000/1m" }];

fn router(name: &str, quota: &str) -> Router {
    let hello = Router::new().route("/", get(async || "hello, world"));
    let limited = match name {
        SLIDEGATE => hello.layer(layer(quota, HeaderStyle::Draft)),
        LEGACY => hello.layer(layer(quota, HeaderStyle::LegacyDelta)),
        GOVERNOR => {
            // Never empty: the largest possible burst, refilled each millisecond.
            let mut config = GovernorConfigBuilder::default();
            let config = config.per_millisecond(1).burst_size(u32::MAX).use_headers().finish();
            hello.layer(GovernorLayer::new(config.expect("a valid quota")))
        }
        _ => hello,
    };
    // Builds the routes once, as axum's server does, not for each request.
    limited.with_state(())
}

fn layer(quota: &str, style: HeaderStyle) -> RateLimitLayer {
    RateLimitLayer::new(Limiter::in_memory("api", [quota]).expect("a valid quota")).headers(style)
}

/// Request with the peer's address, as axum's server creates it.
fn request(number: usize, clients: usize) -> Request {
    let client = u32::try_from(number % clients).expect("few clients");
    let address = SocketAddr::new(IpAddr::V4(Ipv4Addr::from_bits(0x0A00_0000 + client)), 50_000);
    let mut request = Request::new(Body::empty());
    request.extensions_mut().insert(ConnectInfo(address));
    request
}

/// Returns the median and the 99th percentile in nanoseconds from the call to the end of the response.
async fn round(router: &mut Router, clients: usize) -> (f64, f64) {
    let mut times = Vec::with_capacity(REQUESTS);
    for number in 0..REQUESTS {
        // Created right before its use, so that it is in the cache as after parsing.
        let request = request(number, clients);
        let start = Instant::now();
        let served = router.call(request).await.map(|response| response.status());
        times.push(u32::try_from(start.elapsed().as_nanos()).unwrap_or(u32::MAX));
        assert_eq!(served, Ok(StatusCode::OK));
    }
    times.sort_unstable();
    (times[REQUESTS / 2].into(), times[REQUESTS - REQUESTS / 100].into())
}

struct Subject {
    name: &'static str,
    router: Router,
    p50: Figures,
    p99: Figures,
    /// Difference to the median of the bare router in the same round.
    added: Figures,
}

pub(crate) fn report() {
    println!("nanoseconds per request, median of {ROUNDS} rounds (least to most)\n");
    println!(
        "| | clients | p50 | p99 | added to p50 | relative to tower_governor |\n|---|---|---|---|---|---|"
    );
    let verdicts = SCENARIOS.map(compare);
    println!("\n{}", verdicts.join("\n"));
}

/// Prints the rows of a scenario and returns whether it meets the targets.
fn compare(Scenario { clients, quota }: Scenario) -> String {
    let mut subjects = SUBJECTS.map(|name| Subject {
        name,
        router: router(name, quota),
        p50: Figures::default(),
        p99: Figures::default(),
        added: Figures::default(),
    });
    runtime().block_on(async {
        for subject in &mut subjects {
            round(&mut subject.router, clients).await;
        }
        for number in 0..ROUNDS {
            let mut medians = [0.0; SUBJECTS.len()];
            for place in 0..SUBJECTS.len() {
                // Each round starts with a different subject, so that none always follows the same other.
                let index = (number + place) % SUBJECTS.len();
                let subject = &mut subjects[index];
                let (p50, p99) = round(&mut subject.router, clients).await;
                medians[index] = p50;
                subject.p50.push(p50);
                subject.p99.push(p99);
            }
            for (subject, p50) in subjects.iter_mut().zip(medians) {
                subject.added.push(p50 - medians[0]);
            }
        }
    });
    let governor = subjects[3].added.median();
    for Subject { name, p50, p99, added, .. } in &subjects {
        let ratio =
            if *name == BARE { "–".to_owned() } else { format!("{:.2}", added.median() / governor) };
        println!("| {name} | {clients} | {p50} | {p99} | {added} | {ratio} |");
    }
    let slidegate = subjects[1].added.median();
    let verdict = |is_reached| if is_reached { "reached" } else { "missed" };
    let (in_time, is_less) = (verdict(slidegate <= AIM_NS), verdict(slidegate < governor));
    format!("{clients} client(s): at most {AIM_NS:.0} ns: {in_time}; less than tower_governor: {is_less}")
}

/// Sends `requests` requests to one router, for a profiler.
pub(crate) fn work(name: &str, requests: usize) {
    let mut router = router(name, SCENARIOS[0].quota);
    runtime().block_on(async {
        for number in 0..requests {
            let _ = std::hint::black_box(router.call(request(number, SCENARIOS[0].clients)).await);
        }
    });
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().build().expect("a runtime")
}
