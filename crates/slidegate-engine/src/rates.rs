//! Policies of rates that come with requests.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use slidegate::headers::HeaderStyle;
use slidegate::{Algorithm, Policy, Quota, QuotaError};

use crate::policies::PolicyView;
use crate::policy_metrics::PolicyMetrics;

/// Maximum number of cached policies.
const MAX_CACHED_POLICIES: usize = 1024;

/// A token bucket of `capacity` that refills by `count` per period.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BucketRate {
    /// Name of the policy for all rates of a protocol, so that the count of a key carries over to another rate.
    pub policy_name: &'static str,
    pub capacity: u64,
    pub count: u64,
    pub period_s: u64,
}

impl BucketRate {
    fn policy(&self) -> Result<Policy, QuotaError> {
        let quota = Quota::new(self.count, Duration::from_secs(self.period_s))?
            .with_algorithm(Algorithm::TokenBucket)
            .with_burst(self.capacity)?;
        Policy::with_names(self.policy_name, [("rate", quota)])
    }
}

/// Cache of the policies for rates, which all listeners share. Equal rates get the same policy object: the memory store would
/// rewrite a key's record for another one.
#[derive(Debug, Default)]
pub struct RatePolicies(Mutex<Cache>);

#[derive(Debug, Default)]
struct Cache {
    policies: HashMap<BucketRate, Arc<PolicyView>>,
    /// By the name of the policy.
    metrics: HashMap<&'static str, Arc<PolicyMetrics>>,
}

impl RatePolicies {
    /// Returns the policy of a rate.
    pub fn find(&self, rate: BucketRate) -> Result<Arc<PolicyView>, QuotaError> {
        let mut cache = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(policy) = cache.policies.get(&rate) {
            return Ok(Arc::clone(policy));
        }
        let policy = rate.policy()?;
        let metrics = cache
            .metrics
            .entry(rate.policy_name)
            .or_insert_with(|| Arc::new(PolicyMetrics::for_rates(rate.policy_name)));
        let view = Arc::new(PolicyView::new(policy, HeaderStyle::None, Arc::clone(metrics)));
        // Bounds the memory when clients send many different rates.
        if cache.policies.len() >= MAX_CACHED_POLICIES {
            cache.policies.clear();
        }
        cache.policies.insert(rate, Arc::clone(&view));
        Ok(view)
    }
}
