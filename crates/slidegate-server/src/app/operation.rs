//! What is asked by protocols that have found the policy themselves, without a request in between.

use std::sync::Arc;

use slidegate::{Check, Operation, Verb};

use slidegate_config::MAX_KEY_BYTES;

use super::Prepared;
use crate::policies::PolicyView;
use crate::request::Rejection;

/// What to do, under which policy and to whom.
#[derive(Debug)]
pub(crate) struct PolicyOperation<'a> {
    pub(crate) verb: Verb,
    pub(crate) named: Arc<PolicyView>,
    pub(crate) key: &'a [u8],
    pub(crate) cost: u64,
}

impl PolicyOperation<'_> {
    /// Returns the operation, ready for [`App::execute`](super::App::execute).
    pub(crate) fn prepared(&self) -> Prepared<'_> {
        let check = Check { policy: self.named.policy(), key: self.key, cost: self.cost };
        Prepared::new(Operation { verb: self.verb, check }, &self.named.policy_metrics)
    }
}

/// A key of a length that is allowed.
pub(crate) fn key(key: &[u8]) -> Result<&[u8], Rejection> {
    if (1..=MAX_KEY_BYTES).contains(&key.len()) {
        return Ok(key);
    }
    let detail = format!("{} bytes; 1 to {MAX_KEY_BYTES} bytes are allowed", key.len());
    Err(Rejection::out_of_range("key", detail))
}
