//! Quotas in the arguments of `SLIDEGATE.CHECK`.

use std::sync::Arc;

use slidegate::headers::HeaderStyle;

use slidegate_config::QuotaSpec;
use slidegate_engine::{IN_REQUEST_METRICS, PolicyView, Rejection, policy_of_quotas};

/// Maximum length of the quotas that are cached.
const MAX_CACHED_BYTES: usize = 1 << 10;

/// Cache of the policy for a connection's last quotas. Most connections send the same quotas each time.
#[derive(Debug, Default)]
pub(super) struct LastQuotasPolicy(Option<(Box<[u8]>, Arc<PolicyView>)>);

impl LastQuotasPolicy {
    /// Returns the policy for the quotas, and builds it if the last command had others.
    pub(super) fn find(&mut self, quotas: &[&[u8]]) -> Result<Arc<PolicyView>, Rejection> {
        // A quota contains no zero byte.
        let joined = quotas.join(&0);
        if let Some((cached, policy)) = &self.0
            && **cached == *joined
        {
            return Ok(Arc::clone(policy));
        }
        let specs = quotas.iter().map(|text| QuotaSpec::Text(String::from_utf8_lossy(text).into_owned()));
        let policy = policy_of_quotas(&specs.collect::<Vec<_>>())?;
        let policy = Arc::new(PolicyView::new(policy, HeaderStyle::None, Arc::clone(&IN_REQUEST_METRICS)));
        if joined.len() <= MAX_CACHED_BYTES {
            self.0 = Some((joined.into(), Arc::clone(&policy)));
        }
        Ok(policy)
    }
}
