//! What Prometheus reads.

use std::sync::Arc;

use metrics::{Unit, counter, describe_counter, describe_gauge, gauge};
use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder, PrometheusHandle};
use slidegate::{Clock, StoreError, SystemClock};

use crate::decision_counts;
use crate::store_status::{StatusSource, StoreStatus};

/// From 50 µs to a second, which is more than any budget.
const SECONDS: [f64; 14] =
    [0.000_05, 0.000_1, 0.000_2, 0.000_5, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0];
/// How often what was measured is put together. Else it would grow until somebody reads it.
const UPKEEP_MS: u64 = 5000;

const STORE_ERRORS: &str = "slidegate_store_errors_total";

/// Everything that is counted in this process.
#[derive(Clone)]
pub struct Metrics(Arc<PrometheusHandle>);

impl std::fmt::Debug for Metrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Metrics")
    }
}

impl Metrics {
    /// Begins to count. Must be called within a tokio runtime, before anything is counted, and once in a process.
    pub fn install() -> Result<Self, BuildError> {
        let seconds = Matcher::Suffix("_seconds".to_owned());
        let handle =
            PrometheusBuilder::new().set_buckets_for_metric(seconds, &SECONDS)?.install_recorder()?;
        describe();
        // Else the first failure of a kind would not show as growth.
        for kind in StoreError::KINDS {
            counter!(STORE_ERRORS, "kind" => kind).increment(0);
        }
        let metrics = Self(Arc::new(handle));
        let kept = metrics.clone();
        tokio::spawn(async move {
            loop {
                SystemClock::default().sleep(UPKEEP_MS).await;
                kept.0.run_upkeep();
            }
        });
        Ok(metrics)
    }

    /// All of it, with how the store is doing.
    pub(crate) fn render(&self, of: &impl StatusSource) -> String {
        let StoreStatus { breaker, memory, .. } = of.report();
        gauge!("slidegate_store_resting").set(if breaker.is_some_and(|state| state != "closed") {
            1.0
        } else {
            0.0
        });
        if let Some(memory) = memory {
            gauge!("slidegate_memory_keys").set(lossy(memory.keys));
            gauge!("slidegate_memory_max_keys").set(lossy(memory.max_keys));
            gauge!("slidegate_memory_bytes").set(lossy(memory.bytes));
            gauge!("slidegate_memory_evicted_keys").set(lossy(memory.evicted));
        }
        decision_counts::publish();
        self.0.render()
    }
}

#[expect(clippy::cast_precision_loss, reason = "a gauge is a float")]
fn lossy(number: u64) -> f64 {
    number as f64
}

fn describe() {
    describe_counter!("slidegate_decisions_total", "Decisions, by policy, tier, who decided, and how");
    describe_counter!("slidegate_violations_total", "Denials, by the quota that was exceeded");
    describe_counter!("slidegate_near_limit_total", "Allowed with less than a tenth of the limit left");
    describe_counter!("slidegate_refusals_total", "Requests that were not decided, by the reason");
    describe_counter!("slidegate_reloads_total", "How often the file was read again, by how that ended");
    describe_gauge!("slidegate_config_is_current", "0 if the file has changed and could not be used");
    describe_gauge!(
        "slidegate_envoy_config_is_current",
        "0 if the limits for Envoy have changed and could not be used"
    );
    describe_gauge!("slidegate_changes", "Changes by operators that are kept");
    describe_gauge!("slidegate_changes_known", "0 if it is not known what operators have changed");
    describe_gauge!("slidegate_store_resting", "1 if the store is left alone because it has failed");
    describe_gauge!("slidegate_memory_keys", "Keys in the memory store");
    describe_gauge!("slidegate_memory_max_keys", "The most keys that it will hold");
    describe_gauge!("slidegate_memory_bytes", Unit::Bytes, "The memory that it may have touched");
    describe_gauge!(
        "slidegate_memory_evicted_keys",
        "Keys that had to go for others although they counted something"
    );
    describe_counter!(STORE_ERRORS, "What the store was asked and did not decide, by how it failed");
    describe_counter!("slidegate_fallback_total", "Decisions without the store");
    describe_counter!(
        "slidegate_breaker_transitions_total",
        "How often the store was left alone, and asked again"
    );
    describe_gauge!("slidegate_breaker_state", "0 closed, 1 open, 2 probing, 3 recovering");
    describe_counter!("slidegate_denied_cache_hits_total", "Denials told from memory");
    describe_counter!("slidegate_denied_cache_stored_total", "Denials remembered");
    describe_counter!(
        "slidegate_denied_cache_dropped_total",
        "Denials forgotten before their end, by the reason"
    );
    describe_counter!("slidegate_ruled_total", "Decisions by a list or a switch");
    describe_counter!("slidegate_shadow_denials_total", "What would have been denied");
    describe_counter!("slidegate_switched_total", "How often a policy was switched");
}
