//! Counts of decisions, for Prometheus and for the admin API.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, RwLock};

use metrics::counter;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

const SOURCES: [&str; 4] = ["store", "cache", "fallback", "rule"];
const OUTCOMES: [&str; 3] = ["allowed", "denied", "shadow"];

/// Counts of the decisions under one policy in one tier.
#[derive(Debug, Default)]
pub struct DecisionCounts {
    /// Counts by source and outcome, in the order of [`SOURCES`] and [`OUTCOMES`].
    pub decisions: [[AtomicU64; 3]; 4],
    /// Number of requests that were allowed near the limit.
    pub near: AtomicU64,
}

/// Number of decisions by outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Outcomes {
    pub allowed: u64,
    pub denied: u64,
    /// Denials that were not enforced.
    pub shadow: u64,
    /// Decisions that the store did not make.
    pub fallback: u64,
}

/// Values by policy and tier.
type ByTier<T> = BTreeMap<(String, String), T>;

/// Counts of all policies and tiers.
#[derive(Default)]
struct CountTable {
    by_tier: ByTier<Arc<DecisionCounts>>,
    /// Number of entries that are named by values of requests.
    value_entries: usize,
}

/// Table of the process. Counts continue across reloads of the configuration.
static COUNTS: LazyLock<Mutex<CountTable>> = LazyLock::new(Mutex::default);

fn count_table() -> MutexGuard<'static, CountTable> {
    COUNTS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Maximum number of policies and tiers with separate counts, across all reloads. Further ones share one entry.
const MAX_SEPARATE: usize = 500;
const OTHERS: &str = "(others)";

/// Returns the counts of a policy in a tier, and whether they are separate: beyond [`MAX_SEPARATE`] entries, they are those
/// of all others.
pub fn for_tier(policy: &str, tier: &str) -> (Arc<DecisionCounts>, bool) {
    let mut table = count_table();
    let own = (policy.to_owned(), tier.to_owned());
    let configured_entries = table.by_tier.len() - table.value_entries;
    let is_separate = configured_entries < MAX_SEPARATE || table.by_tier.contains_key(&own);
    let name = if is_separate { own } else { (OTHERS.to_owned(), String::new()) };
    (Arc::clone(table.by_tier.entry(name).or_default()), is_separate)
}

/// Maximum number of request values with separate counts. Values have their own limit, so that requests with many values
/// do not displace policies of the file.
const MAX_VALUES: usize = 500;

/// Counts by request value. They have their own lock, because a request waits for it: [`publish`] and [`totals`] hold the
/// lock of the table while they iterate.
static VALUES: LazyLock<RwLock<HashMap<String, ValueCounts>>> = LazyLock::new(RwLock::default);

/// Counts of a name that contains values of requests.
struct ValueCounts {
    /// Limit that applies to the values.
    limit: String,
    counts: Arc<DecisionCounts>,
}

/// Returns the counts of `name`, which contains values of a request under `limit`. Returns `None` if there are too many, or
/// if the name is in use for something else: a client that chooses a value must not change other counts.
pub fn for_value(name: &str, limit: &str) -> Option<Arc<DecisionCounts>> {
    {
        let values = VALUES.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = values.get(name) {
            return (known.limit == limit).then(|| Arc::clone(&known.counts));
        }
        if values.len() >= MAX_VALUES {
            return None;
        }
    }
    let mut values = VALUES.write().unwrap_or_else(PoisonError::into_inner);
    let mut table = count_table();
    let own = (name.to_owned(), String::new());
    if values.len() >= MAX_VALUES || table.by_tier.contains_key(&own) {
        return None;
    }
    table.value_entries += 1;
    let counts = Arc::clone(table.by_tier.entry(own).or_default());
    values.insert(name.to_owned(), ValueCounts { limit: limit.to_owned(), counts: Arc::clone(&counts) });
    Some(counts)
}

/// Labels of the quotas with separate counts: policy, tier and quota.
static QUOTAS: LazyLock<Mutex<BTreeSet<[String; 3]>>> = LazyLock::new(Mutex::default);
const MAX_QUOTAS: usize = 2000;

/// Returns the label of a quota. Beyond [`MAX_QUOTAS`] quotas it is the label of all others.
pub fn quota_label(policy: &str, tier: &str, quota: &str) -> String {
    let mut quotas = QUOTAS.lock().unwrap_or_else(PoisonError::into_inner);
    let own = [policy, tier, quota].map(str::to_owned);
    if quotas.len() >= MAX_QUOTAS && !quotas.contains(&own) {
        return OTHERS.to_owned();
    }
    quotas.insert(own);
    quota.to_owned()
}

/// Copies the counts to the metrics.
pub fn publish() {
    for ((policy, tier), counts) in &count_table().by_tier {
        for (source, outcomes) in SOURCES.iter().zip(&counts.decisions) {
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
        counter!("slidegate_near_limit_total", &labels).absolute(counts.near.load(Relaxed));
    }
}

/// Returns the decisions since the start, by policy.
pub fn totals() -> BTreeMap<String, Outcomes> {
    let mut totals: BTreeMap<String, Outcomes> = BTreeMap::new();
    for ((policy, _), counts) in &count_table().by_tier {
        let total = totals.entry(policy.clone()).or_default();
        for (source, [allowed, denied, shadow]) in SOURCES.iter().zip(&counts.decisions) {
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

    /// Returns the percentage of denials, including those that were not enforced. Returns `None` without decisions.
    #[expect(clippy::float_arithmetic, clippy::cast_precision_loss, reason = "a percentage for display")]
    pub fn denied_percent(self) -> Option<f64> {
        let all = self.allowed + self.denied + self.shadow;
        (all > 0).then(|| (self.denied + self.shadow) as f64 * 100.0 / all as f64)
    }
}

/// Minimum number of decisions for a hint.
const MIN_DECISIONS_FOR_ADVICE: u64 = 1000;

/// Returns a hint about the limit from the share of denials, as a rule of thumb.
pub fn advice(outcomes: Outcomes) -> Option<&'static str> {
    let all = outcomes.allowed + outcomes.denied + outcomes.shadow;
    let denied = outcomes.denied + outcomes.shadow;
    if all < MIN_DECISIONS_FOR_ADVICE {
        None
    } else if denied * 20 > all {
        Some("over 5 % are denied: the limit is too tight, or an attack is in progress")
    } else if denied * 1000 < all {
        Some("under 0.1 % are denied: the limit may be too loose to protect anything")
    } else {
        None
    }
}

/// Totals of the last minute, as snapshots of every five seconds.
#[derive(Debug, Default)]
pub struct History(Mutex<VecDeque<(u64, BTreeMap<String, Outcomes>)>>);

/// Interval between snapshots.
const SNAPSHOT_INTERVAL_MS: u64 = 5000;
/// Number of intervals in a minute.
const INTERVALS: usize = 12;

impl History {
    /// Takes a snapshot of the totals if the latest one is old enough.
    pub fn record(&self, now_ms: u64) {
        let mut snapshots = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if snapshots.back().is_some_and(|(at_ms, _)| now_ms.saturating_sub(*at_ms) < SNAPSHOT_INTERVAL_MS) {
            return;
        }
        snapshots.push_back((now_ms, totals()));
        if snapshots.len() > INTERVALS + 1 {
            snapshots.pop_front();
        }
    }

    /// Returns the decisions of the last minute, or since the start if that is shorter, by policy.
    pub fn last_minute(&self) -> BTreeMap<String, Outcomes> {
        let snapshots = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let before = snapshots.front().map(|(_, totals)| totals);
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
    fn advice_needs_a_minimum_number_of_decisions() {
        let advice_for = |allowed, denied| advice(Outcomes { allowed, denied, ..Outcomes::default() });
        assert_eq!(advice_for(900, 99), None);
        assert!(advice_for(940, 60).is_some_and(|advice| advice.starts_with("over 5 %")));
        assert_eq!(advice_for(950, 50), None);
        assert_eq!(advice_for(99_900, 100), None);
        assert!(advice_for(99_901, 99).is_some_and(|advice| advice.starts_with("under 0.1 %")));
    }

    #[test]
    fn values_have_their_own_limit() {
        for_tier("a-policy-of-a-file", "");
        assert!(for_value("a-policy-of-a-file", "a").is_none(), "the name belongs to a policy");
        assert!(for_value("a-value-0", "a").is_some() && for_value("a-value-0", "a").is_some());
        assert!(for_value("a-value-0", "b").is_none(), "the name belongs to another limit");
        let is_counted = |number: usize| for_value(&format!("a-value-{number}"), "a").is_some();
        let counted = (0..2 * MAX_VALUES).filter(|number| is_counted(*number)).count();
        assert!((1..=MAX_VALUES).contains(&counted), "{counted}");
        assert!(is_counted(0), "a value with separate counts keeps them");
        assert!(for_tier("named-by-a-file", "").1, "values do not displace policies of a file");
    }

    #[test]
    fn the_last_minute_excludes_earlier_decisions() {
        let (history, (counts, _)) = (History::default(), for_tier("of-the-last-minute", ""));
        counts.decisions[0][0].fetch_add(7, Relaxed);
        history.record(1000);
        counts.decisions[2][1].fetch_add(3, Relaxed);
        history.record(2000);
        let expected = Outcomes { denied: 3, fallback: 3, ..Outcomes::default() };
        assert_eq!(history.last_minute()["of-the-last-minute"], expected);
        for interval in 1..=INTERVALS as u64 + 1 {
            history.record(1000 + interval * SNAPSHOT_INTERVAL_MS);
        }
        assert_eq!(history.last_minute()["of-the-last-minute"], Outcomes::default());
    }
}
