//! Seeded traces of one key under several versions of one policy, as tiers are, or what a reload brings.
//!
//! `SLIDEGATE_ORACLE_TRACES=20000` runs more of them than the test suite does, and `SLIDEGATE_ORACLE_SEED` begins with another
//! seed. A failure prints the seed, and the shortest trace found that still differs.

use std::fmt::Write as _;
use std::time::Duration;

use slidegate_core::{Algorithm, Anchor, Policy, Quota, Verb};

use super::{Answer, Oracle};

/// A moment in the middle of nowhere.
const START: u64 = 1_800_000_012_345;

/// Whether quotas with a limit of 0 are among those tried.
const ZERO_LIMITS: bool = true;

/// Limits that the traces are about: few units, for every change to be seen, and some that need merging.
const LIMITS: [u64; 10] = [1, 2, 3, 5, 7, 10, 20, 50, 300, 100_000];
const WINDOWS_MS: [u64; 8] = [10, 276, 1000, 2000, 3000, 10_000, 60_000, 3_600_000];

/// One operation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step {
    pub(crate) now_ms: u64,
    version: usize,
    pub(crate) verb: Verb,
    pub(crate) cost: u64,
}

struct Difference {
    place: usize,
    expected: Answer,
    answer: Answer,
}

/// A small generator with a fixed seed: a failure can be repeated.
#[derive(Clone)]
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }

    fn pick<'a, T>(&mut self, list: &'a [T]) -> &'a T {
        &list[self.below(list.len() as u64) as usize]
    }
}

#[derive(Clone, Debug)]
struct Trace {
    versions: Vec<Policy>,
    steps: Vec<Step>,
}

impl Trace {
    fn new(seed: u64) -> Self {
        let mut random = Random(0x9E37_79B9_7F4A_7C15_u64.wrapping_mul(seed) | 1);
        // Neighbouring seeds begin alike.
        for _ in 0..8 {
            random.below(2);
        }
        let versions = versions(&mut random);
        let steps = steps(&mut random, &versions);
        Self { versions, steps }
    }

    /// What the oracle answers. Nothing if the clock steps back when nothing counts: a store may have forgotten the key, and
    /// with it the time.
    fn expected(&self) -> Option<Vec<Answer>> {
        let mut oracle = Oracle::default();
        let mut last_ms = 0;
        let answers = self.steps.iter().map(|step| {
            let may_be = step.now_ms >= last_ms || oracle.is_live(last_ms);
            last_ms = step.now_ms;
            may_be.then(|| oracle.execute(&self.versions[step.version], step.verb, step.now_ms, step.cost))
        });
        answers.collect()
    }

    /// The place of the first answer that is not the oracle's, and both.
    async fn first_difference(
        &self,
        subject: &mut impl AsyncFnMut(&Policy, Step) -> Answer,
    ) -> Option<Difference> {
        for (place, (step, expected)) in std::iter::zip(&self.steps, self.expected()?).enumerate() {
            let answer = subject(&self.versions[step.version], *step).await;
            if answer != expected {
                return Some(Difference { place, expected, answer });
            }
        }
        None
    }

    /// The same difference with as few steps as it takes.
    async fn shortened<S: AsyncFnMut(&Policy, Step) -> Answer>(
        mut self,
        mut first: Difference,
        new_key: &mut impl FnMut() -> S,
    ) -> (Self, Difference) {
        self.steps.truncate(first.place + 1);
        let mut place = 0;
        while place < self.steps.len() {
            let mut shorter = self.clone();
            shorter.steps.remove(place);
            match shorter.first_difference(&mut new_key()).await {
                Some(difference) => {
                    shorter.steps.truncate(difference.place + 1);
                    (self, first, place) = (shorter, difference, 0);
                }
                None => place += 1,
            }
        }
        (self, first)
    }

    fn to_text(&self) -> String {
        let mut text = String::new();
        let mut last_ms = self.steps[0].now_ms;
        let _ = writeln!(text, "from {last_ms}:");
        for Step { now_ms, version, verb, cost } in &self.steps {
            let after_ms = i128::from(*now_ms) - i128::from(last_ms);
            let quotas: Vec<_> = self.versions[*version].quotas().iter().map(Quota::to_string).collect();
            let _ = writeln!(text, "  {after_ms:+} ms: {verb:?} {cost} under {}", quotas.join(" + "));
            last_ms = *now_ms;
        }
        text
    }
}

/// Several versions of one policy, as tiers are, or what a reload brings.
fn versions(random: &mut Random) -> Vec<Policy> {
    let algorithm = *random.pick(&Algorithm::ALL);
    let other = *random.pick(&Algorithm::ALL);
    let (kinds, most): (&[Algorithm], u64) = match random.below(12) {
        0..=2 => (&[algorithm], 1),
        3..=5 => (&[algorithm], 3),
        6..=7 => (&[algorithm, algorithm, other], 2),
        8 => (&[Algorithm::TokenBucket], 2),
        9..=10 => (&Algorithm::ALL, 4),
        // As many counts as are kept beside those of a policy.
        _ => (&Algorithm::ALL, 5),
    };
    // Windows that are close to each other, or any.
    let first = random.below(WINDOWS_MS.len() as u64) as usize;
    let windows = if random.below(3) > 0 { &WINDOWS_MS[first..(first + 3).min(8)] } else { &WINDOWS_MS[..] };
    let name = format!("traced {}", random.below(1 << 48));
    (0..=random.below(4))
        .map(|_| {
            let quotas = (0..=random.below(most))
                .map(|number| (number.to_string(), quota(random, *random.clone().pick(kinds), windows)));
            Policy::with_names(&name, quotas.collect::<Vec<_>>()).unwrap()
        })
        .collect()
}

fn quota(random: &mut Random, algorithm: Algorithm, windows: &[u64]) -> Quota {
    let window = Duration::from_millis(*random.pick(windows));
    let limit = *random.pick(&LIMITS);
    // A debt that a limit of 0 caps to nothing is written or not: no answer but that of a third version shows it.
    let is_zero = ZERO_LIMITS && algorithm != Algorithm::TokenBucket && random.below(20) == 0;
    let limit = if is_zero { 0 } else { limit };
    let quota = Quota::new(limit, window).unwrap().with_algorithm(algorithm);
    match (algorithm, random.below(3)) {
        (Algorithm::TokenBucket, 0) if limit > 0 => quota.with_burst(*random.pick(&LIMITS)).unwrap(),
        (Algorithm::StrictWindow, 0..=1) => quota.with_slots(4 + 2 * random.below(3)).unwrap(),
        (Algorithm::SlidingWindow | Algorithm::FixedWindow, 0) => {
            quota.with_anchor(Anchor::FirstRequest).unwrap()
        }
        _ => quota,
    }
}

fn steps(random: &mut Random, versions: &[Policy]) -> Vec<Step> {
    let mut oracle = Oracle::default();
    let mut now_ms = START + random.below(4_000_000);
    let mut version = 0;
    let mut latest_ms = now_ms;
    let may_step_back = random.below(2) == 0;
    // A far step while other versions have counts of their own is for the core's own tests: what is dropped then is a choice.
    let shortest = versions.iter().flat_map(Policy::quotas).map(Quota::window_ms).min().unwrap();
    let farthest = if versions.len() > 1 { shortest } else { u64::MAX };
    let changes_once_in = *random.pick(&[2, 4, 10]);
    (0..10 + random.below(40))
        .map(|_| {
            if random.below(changes_once_in) == 0 {
                version = random.below(versions.len() as u64) as usize;
            }
            // Of this version, or of another that may be left behind.
            let quota = *random.pick(random.clone().pick(versions).quotas());
            let window_ms = quota.window_ms();
            now_ms = match random.below(20) {
                0 if may_step_back && oracle.is_live(now_ms) => {
                    (now_ms - random.below(2 * window_ms)).max(latest_ms.saturating_sub(farthest))
                }
                1 if may_step_back && oracle.is_live(now_ms) => {
                    (now_ms - random.below(8 * window_ms)).max(latest_ms.saturating_sub(farthest))
                }
                2..=7 => now_ms,
                8..=9 => now_ms + 1,
                10..=11 => (now_ms / window_ms + 1 + random.below(2)) * window_ms - random.below(2),
                12 => now_ms + random.below(4) * window_ms,
                _ => now_ms + random.below(window_ms) / (1 << random.below(6)),
            };
            latest_ms = latest_ms.max(now_ms);
            let capacity = random.clone().pick(versions[version].quotas()).capacity();
            let cost = match random.below(10) {
                0 => capacity,
                1 => capacity + 1,
                2 => random.below(2),
                3..=6 => 1,
                _ => random.below(capacity + 1) >> random.below(3),
            };
            let verb = match random.below(20) {
                0..=1 => Verb::Peek,
                // Whether what a refund has left of a copy, or nothing, hides the count of another version is a choice.
                2..=3 if versions.len() == 1 || oracle.counts_more_than(cost, &versions[version], now_ms) => {
                    Verb::Refund
                }
                4 if random.below(4) == 0 => Verb::Reset,
                _ => Verb::Check,
            };
            oracle.execute(&versions[version], verb, now_ms, cost);
            Step { now_ms, version, verb, cost }
        })
        .collect()
}

fn number_from(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|text| text.parse().unwrap())
}

/// Runs many short traces, each on a new key: each answer is the oracle's, field by field.
pub(crate) async fn answer_like_the_oracle<S>(traces: u64, mut new_key: impl FnMut() -> S)
where
    S: AsyncFnMut(&Policy, Step) -> Answer,
{
    let traces = number_from("SLIDEGATE_ORACLE_TRACES").unwrap_or(traces);
    let first = number_from("SLIDEGATE_ORACLE_SEED").unwrap_or(1);
    for seed in first..first + traces {
        let trace = Trace::new(seed);
        if let Some(difference) = trace.first_difference(&mut new_key()).await {
            let (trace, Difference { expected, answer, .. }) =
                trace.shortened(difference, &mut new_key).await;
            panic!("seed {seed}: {}expected {expected:?}\nanswered {answer:?}", trace.to_text());
        }
    }
}
