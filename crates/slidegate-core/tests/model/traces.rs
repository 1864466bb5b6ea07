//! Seeded traces of one key under several versions of one policy, such as tiers, or policies before and after a reload.
//!
//! `SLIDEGATE_ORACLE_TRACES` sets the number of traces and `SLIDEGATE_ORACLE_SEED` the first seed. A failure prints its seed and a
//! shortened trace that still differs.

use std::fmt::Write as _;
use std::time::Duration;

use slidegate_core::{Algorithm, Anchor, Policy, Quota, Verb};

use super::Outcome;
use super::key::Oracle;

/// A time that is not the start of a window.
const START: u64 = 1_800_000_012_345;

/// Limits in traces: small ones, where each unit matters, and some that need merges.
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

/// First step whose outcome differs from the oracle's.
struct Difference {
    index: usize,
    expected: Outcome,
    actual: Outcome,
}

/// Seeded generator, so that failures are reproducible.
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
        // The first numbers of adjacent seeds are similar.
        for _ in 0..8 {
            random.below(2);
        }
        let versions = versions(&mut random);
        let steps = steps(&mut random, &versions);
        Self { versions, steps }
    }

    /// Returns the outcomes of the oracle, or `None` if the clock steps back while the key is empty: a store may have dropped the
    /// key and its time.
    fn expected(&self) -> Option<Vec<Outcome>> {
        let mut oracle = Oracle::default();
        let mut last_ms = 0;
        let outcomes = self.steps.iter().map(|step| {
            let is_defined = step.now_ms >= last_ms || oracle.is_live(last_ms);
            last_ms = step.now_ms;
            is_defined
                .then(|| oracle.execute(&self.versions[step.version], step.verb, step.now_ms, step.cost))
        });
        outcomes.collect()
    }

    /// Runs the trace on `subject` and returns the first difference from the oracle.
    async fn first_difference(
        &self,
        subject: &mut impl AsyncFnMut(&Policy, Step) -> Outcome,
    ) -> Option<Difference> {
        for (index, (step, expected)) in std::iter::zip(&self.steps, self.expected()?).enumerate() {
            let actual = subject(&self.versions[step.version], *step).await;
            if actual != expected {
                return Some(Difference { index, expected, actual });
            }
        }
        None
    }

    /// Removes steps one by one as long as a difference remains.
    async fn shortened<S: AsyncFnMut(&Policy, Step) -> Outcome>(
        mut self,
        mut first: Difference,
        new_key: &mut impl FnMut() -> S,
    ) -> (Self, Difference) {
        self.steps.truncate(first.index + 1);
        let mut index = 0;
        while index < self.steps.len() {
            let mut shorter = self.clone();
            shorter.steps.remove(index);
            match shorter.first_difference(&mut new_key()).await {
                Some(difference) => {
                    shorter.steps.truncate(difference.index + 1);
                    (self, first, index) = (shorter, difference, 0);
                }
                None => index += 1,
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

/// Returns one to five versions of a policy.
fn versions(random: &mut Random) -> Vec<Policy> {
    let algorithm = *random.pick(Algorithm::ALL);
    let other = *random.pick(Algorithm::ALL);
    let (algorithms, max_quotas): (&[Algorithm], u64) = match random.below(12) {
        0..=2 => (&[algorithm], 1),
        3..=5 => (&[algorithm], 3),
        6..=7 => (&[algorithm, algorithm, other], 2),
        8 => (&[Algorithm::TokenBucket], 2),
        9..=10 => (Algorithm::ALL, 4),
        // Up to the maximum number of retained counts of other versions.
        _ => (Algorithm::ALL, 5),
    };
    // Similar windows in two of three traces.
    let first = random.below(WINDOWS_MS.len() as u64) as usize;
    let windows = if random.below(3) > 0 { &WINDOWS_MS[first..(first + 3).min(8)] } else { &WINDOWS_MS[..] };
    let name = format!("traced {}", random.below(1 << 48));
    (0..=random.below(4))
        .map(|_| {
            let quotas = (0..=random.below(max_quotas))
                .map(|number| (number.to_string(), quota(random, *random.clone().pick(algorithms), windows)));
            Policy::with_names(&name, quotas.collect::<Vec<_>>()).unwrap()
        })
        .collect()
}

fn quota(random: &mut Random, algorithm: Algorithm, windows: &[u64]) -> Quota {
    let window = Duration::from_millis(*random.pick(windows));
    let limit = *random.pick(&LIMITS);
    let limit = if random.below(20) == 0 { 0 } else { limit };
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
    // Which counts of other versions are dropped after a far step back is not specified, so only the core's own tests cover it.
    let shortest = versions.iter().flat_map(Policy::quotas).map(Quota::window_ms).min().unwrap();
    let max_step_back_ms = if versions.len() > 1 { shortest } else { u64::MAX };
    let steps_per_change = *random.pick(&[2, 4, 10]);
    (0..10 + random.below(40))
        .map(|_| {
            if random.below(steps_per_change) == 0 {
                version = random.below(versions.len() as u64) as usize;
            }
            // Times near the windows of any version.
            let quota = *random.pick(random.clone().pick(versions).quotas());
            let window_ms = quota.window_ms();
            now_ms = match random.below(20) {
                0 if may_step_back && oracle.is_live(now_ms) => {
                    (now_ms - random.below(2 * window_ms)).max(latest_ms.saturating_sub(max_step_back_ms))
                }
                1 if may_step_back && oracle.is_live(now_ms) => {
                    (now_ms - random.below(8 * window_ms)).max(latest_ms.saturating_sub(max_step_back_ms))
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
                // It is not specified whether a copy that was refunded to 0 hides the count of another version.
                2..=3 if versions.len() == 1 || oracle.counts_more_than(cost, &versions[version], now_ms) => {
                    Verb::Refund
                }
                4 if random.below(4) == 0 => Verb::Reset,
                5 if random.below(2) == 0 => Verb::Block,
                6..=8 => Verb::Charge,
                _ => Verb::Check,
            };
            let cost = match (verb, random.below(8)) {
                (Verb::Block, 0..=2) => 0,
                (Verb::Block, 3) if !may_step_back => u64::MAX - random.below(2),
                (Verb::Block, _) => random.below(2 * window_ms),
                // Beyond a limit of 0 too.
                (Verb::Charge, 0..=1) => random.below(2 * capacity + 4),
                _ => cost,
            };
            oracle.execute(&versions[version], verb, now_ms, cost);
            Step { now_ms, version, verb, cost }
        })
        .collect()
}

fn number_from(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|text| text.parse().unwrap())
}

/// Runs many short traces, each on a new key, and asserts that all fields of each outcome equal the oracle's.
pub(crate) async fn assert_traces_match_oracle<S>(traces: u64, mut new_key: impl FnMut() -> S)
where
    S: AsyncFnMut(&Policy, Step) -> Outcome,
{
    let traces = number_from("SLIDEGATE_ORACLE_TRACES").unwrap_or(traces);
    let first = number_from("SLIDEGATE_ORACLE_SEED").unwrap_or(1);
    for seed in first..first + traces {
        let trace = Trace::new(seed);
        if let Some(difference) = trace.first_difference(&mut new_key()).await {
            let (trace, Difference { expected, actual, .. }) =
                trace.shortened(difference, &mut new_key).await;
            panic!("seed {seed}: {}expected {expected:?}\nactual {actual:?}", trace.to_text());
        }
    }
}
