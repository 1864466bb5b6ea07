//! Metrics of decisions. Their labels come from the configuration only, so that clients cannot create labels. The exception
//! are values that the configuration counts separately, whose number is bounded.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use metrics::{Counter, counter};
use slidegate::{Decision, MAX_QUOTAS, Policy, Source};

use crate::decision_counts::{self, DecisionCounts};

/// Maximum number of policies and tiers with separate metrics. Further ones share one set.
const MAX_SEPARATE: usize = 500;
/// Label of all further policies. The labels in parentheses can equal the name of a policy; the counts then include both.
const OTHERS: &str = "(others)";
/// Label of policies whose quotas come with the request.
const IN_REQUEST: &str = "(in request)";
/// Label of keys with their own quotas, and of each of these quotas.
const OVERRIDE: &str = "(override)";
/// Label of quotas that the file does not contain.
const CHANGED: &str = "(changed)";

/// Index of the source `rule` in [`DecisionCounts`].
const BY_RULE: usize = 3;
/// Indices of the outcomes in [`DecisionCounts`].
const ALLOWED: usize = 0;
const DENIED: usize = 1;
const SHADOW: usize = 2;

/// A request is near the limit if it leaves less than one part in this many.
const NEAR: u64 = 10;

/// Counters of one policy in one tier, looked up once.
pub struct PolicyMetrics {
    counts: Arc<DecisionCounts>,
    /// Counters of denials, by index of the quota.
    violations: Box<[Counter]>,
}

/// Metrics of all policies whose quotas come with the request.
pub static IN_REQUEST_METRICS: LazyLock<Arc<PolicyMetrics>> =
    LazyLock::new(|| Arc::new(PolicyMetrics::new(IN_REQUEST, "", &[])));

impl fmt::Debug for PolicyMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PolicyMetrics")
    }
}

impl PolicyMetrics {
    /// Returns the metrics of `policy` in `tier`. `existing` is the number of policies and tiers before it. A quota that is
    /// absent from `labels` gets the label of changed quotas, because runtime changes must not create labels.
    pub fn for_policy(policy: &Policy, tier: &str, existing: usize, labels: Option<&[String]>) -> Self {
        if existing >= MAX_SEPARATE {
            return Self::new(OTHERS, "", &[]);
        }
        let is_label = |name: &'_ str| labels.is_none_or(|labels| labels.iter().any(|label| label == name));
        let names = (0..policy.quotas().len()).map(|index| policy.quota_name(index));
        let quotas: Vec<&str> = names.map(|name| if is_label(name) { name } else { CHANGED }).collect();
        Self::new(policy.name(), tier, &quotas)
    }

    /// Returns the metrics of a rule that needs no store. `quota` is the name of its only limit.
    pub fn for_rule(name: &str, quota: &str, existing: usize) -> Self {
        if existing >= MAX_SEPARATE { Self::new(OTHERS, "", &[]) } else { Self::new(name, "", &[quota]) }
    }

    /// Returns the metrics of all keys with their own quotas under the policy `name`.
    pub fn for_overrides(name: &str, existing: usize) -> Self {
        if existing >= MAX_SEPARATE {
            return Self::new(OTHERS, "", &[]);
        }
        Self::new(name, OVERRIDE, &[OVERRIDE; MAX_QUOTAS])
    }

    /// Returns the metrics of all rates under one policy name.
    pub fn for_rates(policy_name: &str) -> Self {
        Self::new(policy_name, "", &["rate"])
    }

    fn new(policy: &str, tier: &str, quotas: &[&str]) -> Self {
        let (counts, is_separate) = decision_counts::for_tier(policy, tier);
        if !is_separate {
            return Self { counts, violations: Box::default() };
        }
        let violation = |quota: &&str| {
            let labels = [
                ("policy", policy.to_owned()),
                ("tier", tier.to_owned()),
                ("quota", decision_counts::quota_label(policy, tier, quota)),
            ];
            counter!("slidegate_violations_total", &labels)
        };
        Self { violations: quotas.iter().map(violation).collect(), counts }
    }

    /// Returns the metrics of `name`, which contains values of requests under `limit`. Returns `None` if it has no separate
    /// counts. Its only quota needs no name.
    fn for_value(name: &str, limit: &str) -> Option<Self> {
        let counts = decision_counts::for_value(name, limit)?;
        let labels = [("policy", name.to_owned()), ("tier", String::new()), ("quota", String::new())];
        Some(Self { counts, violations: Box::new([counter!("slidegate_violations_total", &labels)]) })
    }

    /// Counts a decision that a rule made without the store.
    pub fn count_by_rule(&self, is_denied: bool, is_shadow: bool) {
        let outcome = match (is_denied, is_shadow) {
            (false, _) => ALLOWED,
            (true, false) => DENIED,
            (true, true) => SHADOW,
        };
        self.counts.decisions[BY_RULE][outcome].fetch_add(1, Relaxed);
        if let Some(violations) = self.violations.first().filter(|_| outcome == DENIED) {
            violations.increment(1);
        }
    }

    /// Counts a decision.
    pub fn count(&self, decision: &Decision) {
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
        self.counts.decisions[source][outcome].fetch_add(1, Relaxed);
        if outcome == ALLOWED {
            let tightest = decision.tightest();
            if tightest.remaining.saturating_mul(NEAR) < tightest.limit {
                self.counts.near.fetch_add(1, Relaxed);
            }
        } else if outcome == DENIED {
            for index in decision.violated() {
                if let Some(violations) = self.violations.get(index) {
                    violations.increment(1);
                }
            }
        }
    }
}

/// Metrics of the values that one limit counts separately.
#[derive(Debug, Default)]
pub(crate) struct MetricsByValue(Mutex<HashMap<String, Arc<PolicyMetrics>>>);

impl MetricsByValue {
    /// Returns the metrics of `name` under the policy `limit`. Returns `None` if it has no separate counts.
    pub(crate) fn find(&self, name: String, limit: &str) -> Option<Arc<PolicyMetrics>> {
        let mut cached = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(policy_metrics) = cached.get(&name) {
            return Some(Arc::clone(policy_metrics));
        }
        let policy_metrics = Arc::new(PolicyMetrics::for_value(&name, limit)?);
        cached.insert(name, Arc::clone(&policy_metrics));
        Some(policy_metrics)
    }
}
