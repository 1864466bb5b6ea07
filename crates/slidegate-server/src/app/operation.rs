//! What is asked by protocols that have found the policy themselves, without a request in between.

use std::sync::Arc;

use slidegate::{Check, Decision, Operation, Store, Verb};

use super::{App, MAX_KEY_BYTES};
use crate::policies::PolicyView;
use crate::request::Rejection;
use crate::traces;

/// What to do, under which policy and to whom.
#[derive(Debug)]
pub(crate) struct PolicyOperation<'a> {
    pub(crate) verb: Verb,
    pub(crate) named: Arc<PolicyView>,
    pub(crate) key: &'a [u8],
    pub(crate) cost: u64,
}

impl PolicyOperation<'_> {
    #[inline]
    fn operation(&self) -> Operation<'_> {
        let check = Check { policy: self.named.policy(), key: self.key, cost: self.cost };
        Operation { verb: self.verb, check }
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

impl<S: Store> App<S> {
    /// Says that it will be asked soon.
    #[inline]
    pub(crate) fn announce(&self, asked: &PolicyOperation<'_>) {
        self.store.announce(&asked.operation().check);
    }

    /// Decides, if the store can at once; `None`, with nothing done, if it may have to wait.
    #[inline]
    pub(crate) fn decide_at_once(&self, asked: &PolicyOperation<'_>) -> Option<Result<Decision, Rejection>> {
        let operation = asked.operation();
        let decision = match self.store.execute_at_once(operation)? {
            Ok(decision) => decision,
            Err(error) => return Some(Err(error.into())),
        };
        self.tell(asked, &operation.check, &decision);
        Some(Ok(decision))
    }

    /// Decides one by itself.
    pub(crate) async fn decide_asked(&self, asked: &PolicyOperation<'_>) -> Result<Decision, Rejection> {
        if let Some(decision) = self.decide_at_once(asked) {
            return decision;
        }
        let operation = asked.operation();
        let decision = traces::within(traces::of_store(), self.store.execute(operation)).await?;
        self.tell(asked, &operation.check, &decision);
        Ok(decision)
    }

    /// Decides all in one call of the store, each for itself, those of one key in their order.
    pub(crate) async fn decide_each(
        &self,
        asked: &[PolicyOperation<'_>],
    ) -> Vec<Result<Decision, Rejection>> {
        let operations: Vec<_> = asked.iter().map(PolicyOperation::operation).collect();
        // One by itself need not be put into a batch by the store.
        let decisions = match operations.as_slice() {
            [only] => vec![self.store.execute(*only).await],
            _ => self.store.execute_many(&operations).await,
        };
        let each = asked.iter().zip(&operations).zip(decisions);
        each.map(|((asked, operation), decision)| {
            let decision = decision?;
            self.tell(asked, &operation.check, &decision);
            Ok(decision)
        })
        .collect()
    }

    #[inline]
    fn tell(&self, asked: &PolicyOperation<'_>, check: &Check<'_>, decision: &Decision) {
        if asked.verb == Verb::Check {
            self.note(&asked.named.policy_metrics, check, decision, None);
        }
    }
}
