//! What is counted about decisions. Labels come from the configuration alone, so that no caller can make more of them; but
//! for values that a configuration asks to have counted apart, of which there is a fixed number.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use metrics::{Counter, counter};
use slidegate::{Decision, MAX_QUOTAS, Policy, Source};

use crate::decision_counts::{self, DecisionCounts};
use crate::throttle::Dialect;

/// How many policies and tiers are counted apart. Those beyond are counted together.
const MAX_APART: usize = 500;
/// What they are called, and those whose quotas come with the request. No policy of a file can be called so and be told
/// apart from them, which does no harm.
const OTHERS: &str = "(others)";
const IN_REQUEST: &str = "(in request)";
/// What keys with quotas of their own are counted as, and each of these quotas.
const OVERRIDE: &str = "(override)";
/// What quotas are counted as that are not those of the file.
const CHANGED: &str = "(changed)";

/// Places in a tally.
const BY_RULE: usize = 3;
const ALLOWED: usize = 0;
const DENIED: usize = 1;
const SHADOW: usize = 2;

/// Less than a tenth left is near the limit.
const NEAR: u64 = 10;

/// The counters of one policy in one tier, found once.
pub(crate) struct PolicyMetrics {
    tally: Arc<DecisionCounts>,
    violations: Box<[Counter]>,
}

/// Counters of all rates that come with `CL.THROTTLE`.
static OF_REDIS_CELL: LazyLock<Arc<PolicyMetrics>> =
    LazyLock::new(|| PolicyMetrics::of_dialect(Dialect::RedisCell));
/// Counters of all rates that come with `THROTTLE` or `POST /throttle`.
static OF_THROTTLECRAB: LazyLock<Arc<PolicyMetrics>> =
    LazyLock::new(|| PolicyMetrics::of_dialect(Dialect::Throttlecrab));

/// Whose quotas come with the request.
pub(crate) static OF_REQUESTS: LazyLock<Arc<PolicyMetrics>> =
    LazyLock::new(|| Arc::new(PolicyMetrics::new(IN_REQUEST, "", &[])));

impl fmt::Debug for PolicyMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PolicyMetrics")
    }
}

impl PolicyMetrics {
    /// Those of `policy` in `tier`, of which there are so many before it. Quotas that are not among those `known` are
    /// counted as changed: what operators make up while it runs must not become ever more labels.
    pub(crate) fn of(policy: &Policy, tier: &str, before: usize, known: Option<&[String]>) -> Self {
        if before >= MAX_APART {
            return Self::new(OTHERS, "", &[]);
        }
        let label = |name: &'_ str| known.is_none_or(|known| known.iter().any(|known| known == name));
        let names = (0..policy.quotas().len()).map(|place| policy.quota_name(place));
        let quotas: Vec<&str> = names.map(|name| if label(name) { name } else { CHANGED }).collect();
        Self::new(policy.name(), tier, &quotas)
    }

    /// Those of a rule that needs no store, whose only limit is called `quota`.
    pub(crate) fn of_rule(name: &str, quota: &str, before: usize) -> Self {
        if before >= MAX_APART { Self::new(OTHERS, "", &[]) } else { Self::new(name, "", &[quota]) }
    }

    /// Those of all keys with quotas of their own under the policy `name`.
    pub(crate) fn of_overrides(name: &str, before: usize) -> Self {
        if before >= MAX_APART {
            return Self::new(OTHERS, "", &[]);
        }
        Self::new(name, OVERRIDE, &[OVERRIDE; MAX_QUOTAS])
    }

    /// Those of all rates that come with the commands of this dialect.
    pub(crate) fn of_throttle(dialect: Dialect) -> Arc<Self> {
        Arc::clone(match dialect {
            Dialect::RedisCell => &OF_REDIS_CELL,
            Dialect::Throttlecrab => &OF_THROTTLECRAB,
        })
    }

    fn of_dialect(dialect: Dialect) -> Arc<Self> {
        Arc::new(Self::new(dialect.policy_name(), "", &["rate"]))
    }

    fn new(policy: &str, tier: &str, quotas: &[&str]) -> Self {
        let (tally, is_apart) = decision_counts::of(policy, tier);
        if !is_apart {
            return Self { tally, violations: Box::default() };
        }
        let violation = |quota: &&str| {
            let labels = [
                ("policy", policy.to_owned()),
                ("tier", tier.to_owned()),
                ("quota", decision_counts::quota_label(policy, tier, quota)),
            ];
            counter!("slidegate_violations_total", &labels)
        };
        Self { violations: quotas.iter().map(violation).collect(), tally }
    }

    /// Those of what is called `name` after values of requests that met `limit`; `None` if there is no room for them. There
    /// is one quota, which needs no name.
    fn of_value(name: &str, limit: &str) -> Option<Self> {
        let tally = decision_counts::of_value(name, limit)?;
        let labels = [("policy", name.to_owned()), ("tier", String::new()), ("quota", String::new())];
        Some(Self { tally, violations: Box::new([counter!("slidegate_violations_total", &labels)]) })
    }

    /// Counts a decision that was made by a rule alone.
    pub(crate) fn count_by_rule(&self, is_denied: bool, is_shadow: bool) {
        let outcome = match (is_denied, is_shadow) {
            (false, _) => ALLOWED,
            (true, false) => DENIED,
            (true, true) => SHADOW,
        };
        self.tally.decisions[BY_RULE][outcome].fetch_add(1, Relaxed);
        if let Some(violations) = self.violations.first().filter(|_| outcome == DENIED) {
            violations.increment(1);
        }
    }

    /// Counts a decision.
    pub(crate) fn count(&self, decision: &Decision) {
        let source = match decision.source() {
            Source::Cache => 1,
            Source::Fallback(_) => 2,
            Source::Rule => BY_RULE,
            _ => 0,
        };
        let outcome = if !decision.is_allowed() {
            DENIED
        } else if decision.shadow().is_some_and(|shadow| !shadow.is_allowed()) {
            SHADOW
        } else {
            ALLOWED
        };
        self.tally.decisions[source][outcome].fetch_add(1, Relaxed);
        if outcome == ALLOWED {
            let tightest = decision.tightest();
            if tightest.remaining.saturating_mul(NEAR) < tightest.limit {
                self.tally.near.fetch_add(1, Relaxed);
            }
        } else if outcome == DENIED {
            for place in decision.violated() {
                if let Some(violations) = self.violations.get(place) {
                    violations.increment(1);
                }
            }
        }
    }
}

/// Those of one limit for values that are counted apart, as far as there is room for them.
#[derive(Debug, Default)]
pub(crate) struct MetricsByValue(Mutex<HashMap<String, Arc<PolicyMetrics>>>);

impl MetricsByValue {
    /// Those of what is called `name` under the policy `limit`; `None` if it is counted with the others.
    pub(crate) fn find(&self, name: String, limit: &str) -> Option<Arc<PolicyMetrics>> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(policy_metrics) = known.get(&name) {
            return Some(Arc::clone(policy_metrics));
        }
        let policy_metrics = Arc::new(PolicyMetrics::of_value(&name, limit)?);
        known.insert(name, Arc::clone(&policy_metrics));
        Some(policy_metrics)
    }
}
