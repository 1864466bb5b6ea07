//! Quotas that come with `SLIDEGATE.CHECK`.

use std::sync::Arc;

use slidegate::tower::HeaderStyle;

use crate::app::policy_of;
use crate::policies::PolicyView;
use crate::policy_metrics::OF_REQUESTS;
use crate::request::Rejection;
use slidegate_config::QuotaSpec;

/// The longest text of quotas that a connection keeps.
const MAX_KEPT_BYTES: usize = 1 << 10;

/// The policy of the quotas that a connection sent last: most send no others.
#[derive(Debug, Default)]
pub(super) struct RecentQuotas(Option<(Box<[u8]>, Arc<PolicyView>)>);

impl RecentQuotas {
    pub(super) fn find(&mut self, texts: &[&[u8]]) -> Result<Arc<PolicyView>, Rejection> {
        // No quota has a zero byte.
        let joined = texts.join(&0);
        if let Some((recent, named)) = &self.0
            && **recent == *joined
        {
            return Ok(Arc::clone(named));
        }
        let quotas = texts.iter().map(|text| QuotaSpec::Text(String::from_utf8_lossy(text).into_owned()));
        let policy = policy_of(&quotas.collect::<Vec<_>>())?;
        let named = Arc::new(PolicyView::new(policy, HeaderStyle::None, Arc::clone(&OF_REQUESTS)));
        if joined.len() <= MAX_KEPT_BYTES {
            self.0 = Some((joined.into(), Arc::clone(&named)));
        }
        Ok(named)
    }
}
