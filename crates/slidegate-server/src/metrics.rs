//! Metrics of the process in the Prometheus text format.

use std::sync::Arc;

use metrics::{Unit, counter, describe_counter, describe_gauge, gauge};
use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder, PrometheusHandle};
use slidegate::{Clock, StoreError, SystemClock};

use slidegate_engine::{STORE_ERRORS, StatusSource, StoreStatus, decision_counts};

/// Histogram buckets in seconds. The last one is longer than any budget of a store.
const BUCKETS: [f64; 14] =
    [0.000_05, 0.000_1, 0.000_2, 0.000_5, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0];
/// Interval in which measurements are merged into the histograms. Without it they would accumulate until the next scrape.
const UPKEEP_MS: u64 = 5000;

/// Handle of the metrics recorder of this process.
#[derive(Clone)]
pub struct Metrics(Arc<PrometheusHandle>);

impl std::fmt::Debug for Metrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Metrics")
    }
}

impl Metrics {
    /// Installs the recorder. Must be called within a tokio runtime, once per process, and before the first measurement.
    pub fn install() -> Result<Self, BuildError> {
        let seconds = Matcher::Suffix("_seconds".to_owned());
        let handle =
            PrometheusBuilder::new().set_buckets_for_metric(seconds, &BUCKETS)?.install_recorder()?;
        describe();
        // Creates the series, because `rate` and `increase` ignore the first value of a new one.
        for kind in StoreError::KINDS {
            counter!(STORE_ERRORS, "kind" => kind).increment(0);
        }
        let metrics = Self(Arc::new(handle));
        let upkept = metrics.clone();
        tokio::spawn(async move {
            loop {
                SystemClock::default().sleep(UPKEEP_MS).await;
                upkept.0.run_upkeep();
            }
        });
        Ok(metrics)
    }

    /// Returns all metrics as text, with gauges of the store's current status.
    pub(crate) fn render(&self, store: &impl StatusSource) -> String {
        let StoreStatus { breaker, memory, .. } = store.status();
        gauge!("slidegate_store_resting").set(if breaker.is_some_and(|state| state != "closed") {
            1.0
        } else {
            0.0
        });
        if let Some(memory) = memory {
            gauge!("slidegate_memory_keys").set(as_gauge(memory.keys));
            gauge!("slidegate_memory_max_keys").set(as_gauge(memory.max_keys));
            gauge!("slidegate_memory_bytes").set(as_gauge(memory.bytes));
            gauge!("slidegate_memory_evicted_keys").set(as_gauge(memory.evicted));
        }
        decision_counts::publish();
        self.0.render()
    }
}

#[expect(clippy::cast_precision_loss, reason = "a gauge is a float")]
fn as_gauge(value: u64) -> f64 {
    value as f64
}

fn describe() {
    describe_counter!("slidegate_decisions_total", "Decisions, by policy, tier, source and outcome");
    describe_counter!("slidegate_violations_total", "Denials, by the violated quota");
    describe_counter!(
        "slidegate_near_limit_total",
        "Allowed requests that left less than a tenth of the limit"
    );
    describe_counter!("slidegate_refusals_total", "Requests without a decision, by the reason");
    describe_counter!("slidegate_reloads_total", "Reloads of the configuration file, by the result");
    describe_gauge!(
        "slidegate_config_is_current",
        "0 if the present configuration file is invalid and the previous one stays in force"
    );
    describe_gauge!(
        "slidegate_envoy_config_is_current",
        "0 if the present limits for Envoy are invalid and the previous ones stay in force"
    );
    describe_gauge!("slidegate_changes", "Stored changes of operators");
    describe_gauge!("slidegate_changes_known", "0 if the changes of operators may be incomplete");
    describe_gauge!("slidegate_store_resting", "1 if the breaker keeps requests from the store");
    describe_gauge!("slidegate_memory_keys", "Keys in the memory store");
    describe_gauge!("slidegate_memory_max_keys", "Maximum number of keys in the memory store");
    describe_gauge!("slidegate_memory_bytes", Unit::Bytes, "Memory that the memory store may occupy");
    describe_gauge!("slidegate_memory_evicted_keys", "Keys that were evicted before their counts expired");
    describe_counter!(STORE_ERRORS, "Requests that the store did not decide, by the kind of the error");
    describe_counter!("slidegate_fallback_total", "Decisions without the store");
    describe_counter!("slidegate_breaker_transitions_total", "Transitions of a breaker");
    describe_gauge!("slidegate_breaker_state", "0 closed, 1 open, 2 probing, 3 recovering");
    describe_counter!("slidegate_denied_cache_hits_total", "Denials from the denial cache");
    describe_counter!("slidegate_denied_cache_stored_total", "Denials that were cached");
    describe_counter!(
        "slidegate_denied_cache_dropped_total",
        "Cached denials that were dropped before their expiry, by the reason"
    );
    describe_counter!("slidegate_ruled_total", "Decisions by the mode or a key list of a policy");
    describe_counter!("slidegate_shadow_denials_total", "Denials that were not enforced");
    describe_counter!("slidegate_switched_total", "Changes of a policy's mode");
}
