//! Many nodes, one store, and everything that can go wrong with it, in virtual time: thousands of courses of events, each
//! the same every time for its seed.

use std::num::NonZeroU32;
use std::sync::{Arc, Mutex};

use slidegate::degrade::{FailureRule, Fallback, OnFailure};
use slidegate::{Clock, Limiter, MemoryStore, Policy, Source};
use tokio::task::JoinSet;

use crate::faulty::{Fault, FaultyStore, VirtualClock, sleep};

const WINDOW_MS: u64 = 1000;
const BUDGET_MS: u64 = 20;

/// A random number generator that will be the same for ever.
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

/// What it promises for a limit of `limit` in any window: so many times that.
const ALGORITHMS: [(&str, u64); 5] = [
    ("strict-window", 1),
    ("sliding-log", 1),
    ("sliding-window", 2),
    ("fixed-window", 2),
    ("token-bucket", 2),
];

/// What is wrong, until when.
#[derive(Clone, Copy, Debug)]
enum Weather {
    /// The same for everybody.
    All(Fault),
    /// One or the other, request by request.
    Any(Fault, Fault),
    /// On for so long, off for so long.
    Flap(u64),
}

fn fault(random: &mut Random) -> Fault {
    match random.below(6) {
        0 => Fault::Down,
        1 => Fault::BlackHole,
        2 => Fault::Lost,
        3 => Fault::Slow(1 + random.below(1000)),
        4 => Fault::Refused,
        _ => Fault::Full,
    }
}

fn weather(random: &mut Random) -> Weather {
    match random.below(5) {
        0 | 1 => Weather::All(Fault::None),
        2 => Weather::All(fault(random)),
        3 => Weather::Any(Fault::None, fault(random)),
        _ => Weather::Flap(10 + random.below(1000)),
    }
}

/// One answer that let somebody in.
#[derive(Clone, Copy, Debug)]
struct Admission {
    at_ms: u64,
    source: Source,
}

struct Course {
    nodes: u32,
    limit: u64,
    /// How many times the limit the algorithm may admit in a window.
    times: u64,
    on_failure: OnFailure,
    admissions: Vec<Admission>,
    /// When the store has started again with nothing counted.
    restarts_ms: Vec<u64>,
    /// How long the slowest answer took.
    longest_ms: u64,
    failures: usize,
}

/// The course of events that belongs to the seed.
async fn run(seed: u64, on_failure: OnFailure) -> Course {
    let mut random = Random(seed);
    let clock = VirtualClock::new();
    let nodes = 1 + random.below(8) as u32;
    let limit = 1 + random.below(12);
    let now_and_chance = Arc::new(Mutex::new((Weather::All(Fault::None), Random(seed ^ 1))));
    let state = Arc::clone(&now_and_chance);
    let store = FaultyStore::new(clock, move || {
        let mut state = state.lock().unwrap();
        match state.0 {
            Weather::All(fault) => fault,
            Weather::Any(one, other) => {
                if state.1.below(2) == 0 {
                    one
                } else {
                    other
                }
            }
            Weather::Flap(ms) if (clock.now_ms() / ms).is_multiple_of(2) => Fault::None,
            Weather::Flap(_) => Fault::Down,
        }
    });
    let rule = FailureRule { on_failure, ..FailureRule::default() };
    let limiter = |node: u32| {
        let fallback = Fallback::builder(store.clone()).nodes(nodes).policy("api", rule).clock(clock);
        // Small ones are made faster, and there are thousands.
        let fallback = fallback.local(MemoryStore::builder().max_keys(100));
        Arc::new(Limiter::new(fallback.seed(seed ^ u64::from(node)).build().unwrap()))
    };
    let limiters: Vec<_> = (0..nodes).map(limiter).collect();
    let (algorithm, times) = ALGORITHMS[random.below(ALGORITHMS.len() as u64) as usize];
    let policy = Arc::new(Policy::parse("api", [format!("{limit}/1s {algorithm}").as_str()]).unwrap());

    let mut tasks = JoinSet::new();
    let mut weather_ends = 0;
    let mut restarts_ms = Vec::new();
    for step in 0..200 {
        if step >= weather_ends {
            if random.below(8) == 0 {
                store.restart();
                restarts_ms.push(clock.now_ms());
            }
            now_and_chance.lock().unwrap().0 = weather(&mut random);
            weather_ends = step + 5 + random.below(40);
        }
        let limiter = Arc::clone(&limiters[random.below(u64::from(nodes)) as usize]);
        let policy = Arc::clone(&policy);
        tasks.spawn(async move {
            let asked_ms = clock.now_ms();
            let answer = limiter.check(policy.key("k")).await;
            let at_ms = clock.now_ms();
            let admitted = answer.as_ref().ok().filter(|decision| decision.is_allowed());
            let admission = admitted.map(|decision| Admission { at_ms, source: decision.source() });
            (admission, at_ms - asked_ms, answer.is_err())
        });
        sleep(random.below(60)).await;
    }
    let answers = tasks.join_all().await;
    let mut admissions: Vec<Admission> = answers.iter().filter_map(|answer| answer.0).collect();
    admissions.sort_by_key(|admission| admission.at_ms);
    let longest_ms = answers.iter().map(|answer| answer.1).max().unwrap();
    let failures = answers.iter().filter(|answer| answer.2).count();
    Course { nodes, limit, times, on_failure, admissions, restarts_ms, longest_ms, failures }
}

impl Course {
    /// The most that is ever let in within a window, if the store does not forget.
    fn bound(&self) -> u64 {
        let share = (self.limit / u64::from(self.nodes)).max(1);
        match self.on_failure {
            OnFailure::Local => self.times * (self.limit + u64::from(self.nodes) * share),
            OnFailure::Open | OnFailure::Closed => self.times * self.limit,
        }
    }

    /// The most that were in fact let in within a window, less the limit for each time that the store has forgotten
    /// everything in it. The window is shorter by the budget, since an answer may come that much later than it was decided.
    fn most_in_a_window(&self) -> u64 {
        let counted: Vec<u64> = self
            .admissions
            .iter()
            // Whoever asks to be let in on failure is not limited then.
            .filter(|admission| self.on_failure != OnFailure::Open || admission.source == Source::Store)
            .map(|admission| admission.at_ms)
            .collect();
        let from = |first: usize| {
            let window = counted[first]..counted[first] + WINDOW_MS - BUDGET_MS;
            let admitted = counted[first..].iter().take_while(|at_ms| window.contains(at_ms)).count() as u64;
            // It may have been asked by then and have answered later.
            let asked = window.start - BUDGET_MS..window.end;
            let forgotten = self.restarts_ms.iter().filter(|at_ms| asked.contains(at_ms)).count() as u64;
            admitted.saturating_sub(forgotten * self.times * self.limit)
        };
        (0..counted.len()).map(from).max().unwrap_or(0)
    }
}

fn in_virtual_time<T>(future: impl Future<Output = T>) -> T {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_time().start_paused(true).build().unwrap().block_on(future)
}

#[test]
fn whatever_the_store_does_the_bound_holds_and_every_answer_comes_in_time() {
    let (mut reached, mut degraded, mut failed) = (0, 0, 0);
    for seed in 0..3000 {
        let on_failure = [OnFailure::Local, OnFailure::Closed, OnFailure::Open][seed as usize % 3];
        let course = in_virtual_time(run(seed, on_failure));
        let most = course.most_in_a_window();
        assert!(
            most <= course.bound(),
            "seed {seed}: {most} of {} in a window, {on_failure:?}",
            course.bound()
        );
        assert!(course.longest_ms <= BUDGET_MS, "seed {seed}: an answer took {} ms", course.longest_ms);
        let by_fallback = |admission: &&Admission| admission.source != Source::Store;
        let fell_back = course.admissions.iter().filter(by_fallback).count();
        match on_failure {
            OnFailure::Closed => assert_eq!(fell_back, 0, "seed {seed}"),
            OnFailure::Open | OnFailure::Local => assert_eq!(course.failures, 0, "seed {seed}"),
        }
        reached += usize::from(most > course.limit);
        degraded += fell_back;
        failed += course.failures;
    }
    // Else nothing was put to the test.
    assert!(reached > 100 && degraded > 10_000 && failed > 10_000, "{reached} {degraded} {failed}");
}

#[test]
fn a_store_that_comes_and_goes_yields_twice_the_limit_and_not_once_more_each_time() {
    in_virtual_time(async {
        let clock = VirtualClock::new();
        // On and off a hundred times in the window of one quota.
        let store = FaultyStore::new(clock, move || {
            if (clock.now_ms() / 600).is_multiple_of(2) { Fault::None } else { Fault::Down }
        });
        let nodes = NonZeroU32::new(3).unwrap();
        let policy = Policy::parse("api", ["30/2m strict-window"]).unwrap();
        let limiter = |seed| {
            Limiter::new(
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
fn a_store_that_comes_back_is_not_stampeded_by_many_nodes() {
    const NODES: usize = 20;
    in_virtual_time(async {
        let clock = VirtualClock::new();
        let down_until_ms = clock.now_ms() + 3000;
        let store = FaultyStore::new(clock, move || {
            if clock.now_ms() < down_until_ms { Fault::BlackHole } else { Fault::None }
        });
        let policy = Policy::parse("api", ["1000000/1s"]).unwrap();
        let limiter = |seed| {
            Arc::new(Limiter::new(Fallback::builder(store.clone()).clock(clock).seed(seed).build().unwrap()))
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
        let asked = store.asked_ms.lock().unwrap();
        let within = |from_ms: u64, to_ms: u64| {
            let range = down_until_ms + from_ms..down_until_ms + to_ms;
            asked.iter().filter(|at_ms| range.contains(at_ms)).count()
        };
        // Of 20,000 requests a second.
        let seconds: Vec<usize> = (0..14).map(|second| within(1000 * second, 1000 * (second + 1))).collect();
        assert!(within(0, 200) < 200, "{seconds:?}");
        assert!(seconds[0] < 2000 && seconds[1] < 5000, "{seconds:?}");
        // Each second brings at most a quarter of everything more than the one before.
        assert!(seconds.windows(2).all(|pair| pair[1] < pair[0] + 5000), "{seconds:?}");
        assert!(seconds[13] > 18_000, "{seconds:?}");
        let before = asked.iter().filter(|at_ms| **at_ms < down_until_ms).count();
        assert!(before < 20 * 15, "while it was down it was asked {before} times");
    });
}
