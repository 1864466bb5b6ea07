//! Many nodes, one store and random faults in virtual time: thousands of scenarios, each reproducible from its seed.

use std::num::NonZeroU32;
use std::sync::{Arc, Mutex};

use slidegate::resilience::{FailureRule, Fallback, OnFailure};
use slidegate::store::{MemoryStore, StoreLimiter};
use slidegate::{Clock, Policy, Source};
use tokio::task::JoinSet;

use crate::faulty::{Fault, FaultyStore, VirtualClock, sleep};

const WINDOW_MS: u64 = 1000;
const BUDGET_MS: u64 = 20;

/// A random number generator (`SplitMix64`) with a fixed sequence per seed.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((u128::from(z ^ (z >> 31)) * u128::from(bound)) >> 64) as u64
    }
}

/// Algorithms and the most that each admits in any window, as a multiple of the limit.
const ALGORITHMS: [(&str, u64); 5] = [
    ("strict-window", 1),
    ("sliding-log", 1),
    ("sliding-window", 2),
    ("fixed-window", 2),
    ("token-bucket", 2),
];

/// Fault pattern of the store.
#[derive(Clone, Copy, Debug)]
enum FaultPattern {
    /// One fault for all requests.
    All(Fault),
    /// One of two faults, chosen per request.
    Any(Fault, Fault),
    /// Alternates between no fault and `Down` every given number of milliseconds.
    Flap(u64),
}

fn fault(random: &mut Random) -> Fault {
    match random.below(6) {
        0 => Fault::Down,
        1 => Fault::BlackHole,
        2 => Fault::Lost,
        3 => Fault::Slow(1 + random.below(1000)),
        4 => Fault::Permanent,
        _ => Fault::Full,
    }
}

fn fault_pattern(random: &mut Random) -> FaultPattern {
    match random.below(5) {
        0 | 1 => FaultPattern::All(Fault::None),
        2 => FaultPattern::All(fault(random)),
        3 => FaultPattern::Any(Fault::None, fault(random)),
        _ => FaultPattern::Flap(10 + random.below(1000)),
    }
}

/// An allowed request.
#[derive(Clone, Copy, Debug)]
struct Admission {
    at_ms: u64,
    source: Source,
}

struct Run {
    nodes: u32,
    limit: u64,
    /// The most that the algorithm may admit in a window, as a multiple of the limit.
    limit_multiple: u64,
    on_failure: OnFailure,
    admissions: Vec<Admission>,
    /// Times at which the store restarted empty.
    restarts_ms: Vec<u64>,
    /// Duration of the slowest request.
    longest_ms: u64,
    failures: usize,
}

/// Runs the scenario of the seed.
async fn run(seed: u64, on_failure: OnFailure) -> Run {
    let mut random = Random(seed);
    let clock = VirtualClock::new();
    let nodes = 1 + random.below(8) as u32;
    let limit = 1 + random.below(12);
    let pattern_and_random = Arc::new(Mutex::new((FaultPattern::All(Fault::None), Random(seed ^ 1))));
    let state = Arc::clone(&pattern_and_random);
    let store = FaultyStore::new(clock, move || {
        let mut state = state.lock().unwrap();
        match state.0 {
            FaultPattern::All(fault) => fault,
            FaultPattern::Any(one, other) => {
                if state.1.below(2) == 0 {
                    one
                } else {
                    other
                }
            }
            FaultPattern::Flap(ms) if (clock.now_ms() / ms).is_multiple_of(2) => Fault::None,
            FaultPattern::Flap(_) => Fault::Down,
        }
    });
    let rule = FailureRule::new(on_failure);
    let limiter = |node: u32| {
        let fallback = Fallback::builder(store.clone()).nodes(nodes).policy("api", rule).clock(clock);
        // Small stores are built faster, and the test builds thousands.
        let fallback = fallback.local(MemoryStore::builder().max_keys(100));
        Arc::new(StoreLimiter::new(fallback.seed(seed ^ u64::from(node)).build().unwrap()))
    };
    let limiters: Vec<_> = (0..nodes).map(limiter).collect();
    let (algorithm, limit_multiple) = ALGORITHMS[random.below(ALGORITHMS.len() as u64) as usize];
    let policy = Arc::new(Policy::parse("api", [format!("{limit}/1s {algorithm}").as_str()]).unwrap());

    let mut tasks = JoinSet::new();
    let mut pattern_ends_at_step = 0;
    let mut restarts_ms = Vec::new();
    for step in 0..200 {
        if step >= pattern_ends_at_step {
            if random.below(8) == 0 {
                store.restart();
                restarts_ms.push(clock.now_ms());
            }
            pattern_and_random.lock().unwrap().0 = fault_pattern(&mut random);
            pattern_ends_at_step = step + 5 + random.below(40);
        }
        let limiter = Arc::clone(&limiters[random.below(u64::from(nodes)) as usize]);
        let policy = Arc::clone(&policy);
        tasks.spawn(async move {
            let sent_ms = clock.now_ms();
            let response = limiter.check(policy.key("k")).await;
            let at_ms = clock.now_ms();
            let admitted = response.as_ref().ok().filter(|decision| decision.is_allowed());
            let admission = admitted.map(|decision| Admission { at_ms, source: decision.source() });
            (admission, at_ms - sent_ms, response.is_err())
        });
        sleep(random.below(60)).await;
    }
    let responses = tasks.join_all().await;
    let mut admissions: Vec<Admission> = responses.iter().filter_map(|response| response.0).collect();
    admissions.sort_by_key(|admission| admission.at_ms);
    let longest_ms = responses.iter().map(|response| response.1).max().unwrap();
    let failures = responses.iter().filter(|response| response.2).count();
    Run { nodes, limit, limit_multiple, on_failure, admissions, restarts_ms, longest_ms, failures }
}

impl Run {
    /// Upper bound of the requests allowed within a window, if the store keeps its counts.
    fn bound(&self) -> u64 {
        let share = (self.limit / u64::from(self.nodes)).max(1);
        match self.on_failure {
            OnFailure::Local => self.limit_multiple * (self.limit + u64::from(self.nodes) * share),
            _ => self.limit_multiple * self.limit,
        }
    }

    /// Highest number of requests allowed within a window, less the limit for each restart of the store in it. The
    /// window is shorter by the budget because a response may arrive that much later than its decision.
    fn most_in_a_window(&self) -> u64 {
        let counted: Vec<u64> = self
            .admissions
            .iter()
            // `OnFailure::Open` allows requests without a limit while the store fails.
            .filter(|admission| self.on_failure != OnFailure::Open || admission.source == Source::Store)
            .map(|admission| admission.at_ms)
            .collect();
        let from = |first: usize| {
            let window = counted[first]..counted[first] + WINDOW_MS - BUDGET_MS;
            let admitted = counted[first..].iter().take_while(|at_ms| window.contains(at_ms)).count() as u64;
            // The store may have received the request before the restart and responded after it.
            let received = window.start - BUDGET_MS..window.end;
            let restarts = self.restarts_ms.iter().filter(|at_ms| received.contains(at_ms)).count() as u64;
            admitted.saturating_sub(restarts * self.limit_multiple * self.limit)
        };
        (0..counted.len()).map(from).max().unwrap_or(0)
    }
}

fn in_virtual_time<T>(future: impl Future<Output = T>) -> T {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_time().start_paused(true).build().unwrap().block_on(future)
}

#[test]
fn under_any_fault_the_bound_holds_and_each_response_arrives_within_the_budget() {
    let (mut reached, mut degraded, mut failed) = (0, 0, 0);
    for seed in 0..3000 {
        let on_failure = [OnFailure::Local, OnFailure::Closed, OnFailure::Open][seed as usize % 3];
        let outcome = in_virtual_time(run(seed, on_failure));
        let most = outcome.most_in_a_window();
        assert!(
            most <= outcome.bound(),
            "seed {seed}: {most} of {} in a window, {on_failure:?}",
            outcome.bound()
        );
        assert!(outcome.longest_ms <= BUDGET_MS, "seed {seed}: a response took {} ms", outcome.longest_ms);
        let by_fallback = |admission: &&Admission| admission.source != Source::Store;
        let fell_back = outcome.admissions.iter().filter(by_fallback).count();
        match on_failure {
            OnFailure::Closed => assert_eq!(fell_back, 0, "seed {seed}"),
            _ => assert_eq!(outcome.failures, 0, "seed {seed}"),
        }
        reached += usize::from(most > outcome.limit);
        degraded += fell_back;
        failed += outcome.failures;
    }
    // Guards against a test that exercises nothing.
    assert!(reached > 100 && degraded > 10_000 && failed > 10_000, "{reached} {degraded} {failed}");
}

#[test]
fn a_flapping_store_admits_at_most_twice_the_limit() {
    in_virtual_time(async {
        let clock = VirtualClock::new();
        // 100 outages within the quota's window.
        let store = FaultyStore::new(clock, move || {
            if (clock.now_ms() / 600).is_multiple_of(2) { Fault::None } else { Fault::Down }
        });
        let nodes = NonZeroU32::new(3).unwrap();
        let policy = Policy::parse("api", ["30/2m strict-window"]).unwrap();
        let limiter = |seed| {
            StoreLimiter::new(
                Fallback::builder(store.clone()).nodes(nodes.get()).clock(clock).seed(seed).build().unwrap(),
            )
        };
        let limiters: Vec<_> = (0..u64::from(nodes.get())).map(limiter).collect();
        let mut admitted = 0;
        for step in 0..2400_usize {
            let decision = limiters[step % limiters.len()].check(policy.key("k")).await.unwrap();
            admitted += usize::from(decision.is_allowed());
            sleep(50).await;
        }
        assert!((31..=60).contains(&admitted), "{admitted}");
    });
}

#[test]
fn many_nodes_do_not_stampede_a_recovering_store() {
    const NODES: usize = 20;
    in_virtual_time(async {
        let clock = VirtualClock::new();
        let down_until_ms = clock.now_ms() + 3000;
        let store = FaultyStore::new(clock, move || {
            if clock.now_ms() < down_until_ms { Fault::BlackHole } else { Fault::None }
        });
        let policy = Policy::parse("api", ["1000000/1s"]).unwrap();
        let limiter = |seed| {
            Arc::new(StoreLimiter::new(
                Fallback::builder(store.clone()).clock(clock).seed(seed).build().unwrap(),
            ))
        };
        let limiters: Vec<_> = (0..NODES as u64).map(limiter).collect();
        let mut tasks = JoinSet::new();
        for limiter in limiters {
            let policy = policy.clone();
            tasks.spawn(async move {
                for _ in 0..20_000 {
                    let _ = limiter.check(policy.key("k")).await.unwrap();
                    sleep(1).await;
                }
            });
        }
        tasks.join_all().await;
        let arrivals_ms = store.arrivals_ms.lock().unwrap();
        let within = |from_ms: u64, to_ms: u64| {
            let range = down_until_ms + from_ms..down_until_ms + to_ms;
            arrivals_ms.iter().filter(|at_ms| range.contains(at_ms)).count()
        };
        // The nodes send 20,000 requests per second.
        let seconds: Vec<usize> = (0..14).map(|second| within(1000 * second, 1000 * (second + 1))).collect();
        assert!(within(0, 200) < 200, "{seconds:?}");
        assert!(seconds[0] < 2000 && seconds[1] < 5000, "{seconds:?}");
        // The share grows by at most a quarter of the load per second.
        assert!(seconds.windows(2).all(|pair| pair[1] < pair[0] + 5000), "{seconds:?}");
        assert!(seconds[13] > 18_000, "{seconds:?}");
        let before = arrivals_ms.iter().filter(|at_ms| **at_ms < down_until_ms).count();
        assert!(before < 20 * 15, "the store received {before} requests while it was down");
    });
}
