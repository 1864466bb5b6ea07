//! How many decisions there were, for whoever asks: Prometheus, and those who look after the service.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, RwLock};

use metrics::counter;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

const SOURCES: [&str; 4] = ["store", "cache", "fallback", "rule"];
const OUTCOMES: [&str; 3] = ["allowed", "denied", "shadow"];

/// The decisions under one policy in one tier.
#[derive(Debug, Default)]
pub(crate) struct DecisionCounts {
    /// By who decided, and how.
    pub(crate) decisions: [[AtomicU64; 3]; 4],
    /// Allowed with little left.
    pub(crate) near: AtomicU64,
}

/// How often it ended in which way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub(crate) struct Outcomes {
    pub(crate) allowed: u64,
    pub(crate) denied: u64,
    /// Allowed only because it is not enforced.
    pub(crate) shadow: u64,
    /// Those that the store did not decide.
    pub(crate) fallback: u64,
}

/// By policy and tier.
type ByTier<T> = BTreeMap<(String, String), T>;

/// All that are counted apart.
#[derive(Default)]
struct Tallies {
    by_tier: ByTier<Arc<DecisionCounts>>,
    /// How many of them there are because of values in requests.
    of_values: usize,
}

/// Counts go on where they were when policies are read again.
static TALLIES: LazyLock<Mutex<Tallies>> = LazyLock::new(Mutex::default);

fn tallies() -> MutexGuard<'static, Tallies> {
    TALLIES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How many are counted apart, however often files change. Those beyond are counted together.
const MAX_APART: usize = 500;
const OTHERS: &str = "(others)";

/// The one of this policy in this tier, or of all others if there are too many; and which it is.
pub(crate) fn of(policy: &str, tier: &str) -> (Arc<DecisionCounts>, bool) {
    let mut tallies = tallies();
    let own = (policy.to_owned(), tier.to_owned());
    let of_files = tallies.by_tier.len() - tallies.of_values;
    let is_apart = of_files < MAX_APART || tallies.by_tier.contains_key(&own);
    let name = if is_apart { own } else { (OTHERS.to_owned(), String::new()) };
    (Arc::clone(tallies.by_tier.entry(name).or_default()), is_apart)
}

/// How many are counted apart because of values in requests, beside all others: whoever sends ever new ones takes no room
/// from what a file names.
const MAX_VALUES: usize = 500;

/// These, apart from all others: whoever is not among them must not wait while somebody sums up.
static VALUES: LazyLock<RwLock<HashMap<String, OfValue>>> = LazyLock::new(RwLock::default);

/// The one of a name with values in it.
struct OfValue {
    /// The limit that was met.
    limit: String,
    tally: Arc<DecisionCounts>,
}

/// The one of what is called `name` after values of a request that met `limit`. `None` if there are too many of them, or if
/// something else is called so: whoever chooses a value must not be counted as somebody else.
pub(crate) fn of_value(name: &str, limit: &str) -> Option<Arc<DecisionCounts>> {
    {
        let values = VALUES.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = values.get(name) {
            return (known.limit == limit).then(|| Arc::clone(&known.tally));
        }
        if values.len() >= MAX_VALUES {
            return None;
        }
    }
    let mut values = VALUES.write().unwrap_or_else(PoisonError::into_inner);
    let mut tallies = tallies();
    let own = (name.to_owned(), String::new());
    if values.len() >= MAX_VALUES || tallies.by_tier.contains_key(&own) {
        return None;
    }
    tallies.of_values += 1;
    let tally = Arc::clone(tallies.by_tier.entry(own).or_default());
    values.insert(name.to_owned(), OfValue { limit: limit.to_owned(), tally: Arc::clone(&tally) });
    Some(tally)
}

/// The labels of quotas that are counted apart.
static QUOTAS: LazyLock<Mutex<BTreeSet<[String; 3]>>> = LazyLock::new(Mutex::default);
const MAX_QUOTAS: usize = 2000;

/// The label of a quota, or that of all others if there are too many.
pub(crate) fn quota_label(policy: &str, tier: &str, quota: &str) -> String {
    let mut quotas = QUOTAS.lock().unwrap_or_else(PoisonError::into_inner);
    let own = [policy, tier, quota].map(str::to_owned);
    if quotas.len() >= MAX_QUOTAS && !quotas.contains(&own) {
        return OTHERS.to_owned();
    }
    quotas.insert(own);
    quota.to_owned()
}

/// Says all of it to whoever collects metrics.
pub(crate) fn publish() {
    for ((policy, tier), tally) in &tallies().by_tier {
        for (source, outcomes) in SOURCES.iter().zip(&tally.decisions) {
            for (outcome, count) in OUTCOMES.iter().zip(outcomes) {
                let labels = [
                    ("policy", policy.clone()),
                    ("tier", tier.clone()),
                    ("source", (*source).to_owned()),
                    ("outcome", (*outcome).to_owned()),
                ];
                counter!("slidegate_decisions_total", &labels).absolute(count.load(Relaxed));
            }
        }
        let labels = [("policy", policy.clone()), ("tier", tier.clone())];
        counter!("slidegate_near_limit_total", &labels).absolute(tally.near.load(Relaxed));
    }
}

/// What there is until now, by policy.
pub(crate) fn totals() -> BTreeMap<String, Outcomes> {
    let mut totals: BTreeMap<String, Outcomes> = BTreeMap::new();
    for ((policy, _), tally) in &tallies().by_tier {
        let total = totals.entry(policy.clone()).or_default();
        for (source, [allowed, denied, shadow]) in SOURCES.iter().zip(&tally.decisions) {
            let counts = [allowed, denied, shadow].map(|count| count.load(Relaxed));
            total.allowed += counts[0];
            total.denied += counts[1];
            total.shadow += counts[2];
            if *source == "fallback" {
                total.fallback += counts.iter().sum::<u64>();
            }
        }
    }
    totals
}

impl Outcomes {
    fn since(self, before: Self) -> Self {
        Self {
            allowed: self.allowed.saturating_sub(before.allowed),
            denied: self.denied.saturating_sub(before.denied),
            shadow: self.shadow.saturating_sub(before.shadow),
            fallback: self.fallback.saturating_sub(before.fallback),
        }
    }

    /// How many of a hundred are denied, or would be.
    #[expect(clippy::float_arithmetic, clippy::cast_precision_loss, reason = "a share, for people")]
    pub(crate) fn denied_percent(self) -> Option<f64> {
        let all = self.allowed + self.denied + self.shadow;
        (all > 0).then(|| (self.denied + self.shadow) as f64 * 100.0 / all as f64)
    }
}

/// Too few to say anything about them.
const TOO_FEW: u64 = 1000;

/// What the share of denials says about a limit, as a rule of thumb.
pub(crate) fn advice(outcomes: Outcomes) -> Option<&'static str> {
    let all = outcomes.allowed + outcomes.denied + outcomes.shadow;
    let denied = outcomes.denied + outcomes.shadow;
    if all < TOO_FEW {
        None
    } else if denied * 20 > all {
        Some("over 5 % are denied: the limit is too tight, or somebody attacks")
    } else if denied * 1000 < all {
        Some("under 0.1 % are denied: the limit may be too loose to protect anything")
    } else {
        None
    }
}

/// How it was up to a minute ago.
#[derive(Debug, Default)]
pub(crate) struct History(Mutex<VecDeque<(u64, BTreeMap<String, Outcomes>)>>);

const STEP_MS: u64 = 5000;
const STEPS: usize = 12;

impl History {
    /// Remembers what there is now, unless it has just been remembered.
    pub(crate) fn remember(&self, now_ms: u64) {
        let mut steps = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if steps.back().is_some_and(|(at_ms, _)| now_ms.saturating_sub(*at_ms) < STEP_MS) {
            return;
        }
        steps.push_back((now_ms, totals()));
        if steps.len() > STEPS + 1 {
            steps.pop_front();
        }
    }

    /// What has happened in the last minute, or since the start if that is shorter, by policy.
    pub(crate) fn last_minute(&self) -> BTreeMap<String, Outcomes> {
        let steps = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let before = steps.front().map(|(_, totals)| totals);
        let since = |(policy, now): (String, Outcomes)| {
            let before = before.and_then(|before| before.get(&policy)).copied().unwrap_or_default();
            (policy, now.since(before))
        };
        totals().into_iter().map(since).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rule_of_thumb_needs_enough_to_go_by() {
        let of = |allowed, denied| advice(Outcomes { allowed, denied, ..Outcomes::default() });
        assert_eq!(of(900, 99), None);
        assert!(of(940, 60).is_some_and(|advice| advice.starts_with("over 5 %")));
        assert_eq!(of(950, 50), None);
        assert_eq!(of(99_900, 100), None);
        assert!(of(99_901, 99).is_some_and(|advice| advice.starts_with("under 0.1 %")));
    }

    #[test]
    fn values_have_a_bound_of_their_own() {
        of("a-value-of-a-file", "");
        assert!(of_value("a-value-of-a-file", "a").is_none(), "it is not the file's");
        assert!(of_value("a-value-0", "a").is_some() && of_value("a-value-0", "a").is_some());
        assert!(of_value("a-value-0", "b").is_none(), "it is another limit's");
        let counted = |number: usize| of_value(&format!("a-value-{number}"), "a").is_some();
        let apart = (0..2 * MAX_VALUES).filter(|number| counted(*number)).count();
        assert!((1..=MAX_VALUES).contains(&apart), "{apart}");
        assert!(counted(0), "whoever is counted apart stays so");
        assert!(of("named-by-a-file", "").1, "there is room for what a file names");
    }

    #[test]
    fn the_last_minute_is_what_came_since() {
        let (history, (tally, _)) = (History::default(), of("of-the-last-minute", ""));
        tally.decisions[0][0].fetch_add(7, Relaxed);
        history.remember(1000);
        tally.decisions[2][1].fetch_add(3, Relaxed);
        history.remember(2000);
        let expected = Outcomes { denied: 3, fallback: 3, ..Outcomes::default() };
        assert_eq!(history.last_minute()["of-the-last-minute"], expected);
        for step in 1..=STEPS as u64 + 1 {
            history.remember(1000 + step * STEP_MS);
        }
        assert_eq!(history.last_minute()["of-the-last-minute"], Outcomes::default());
    }
}
