//! Configuration of the rate-limit layer.

use std::sync::Arc;

use bytes::Bytes;
use http::Response;

use super::choice::TierChoice;
use super::head::RequestHead;
use super::key::Key;
use super::not_allowed::NotAllowed;
use super::payment::Payment;
use crate::headers::HeaderStyle;
use crate::store::StoreLimiter;

/// Handling of a request without a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum MissingKey {
    /// All such requests share one counter.
    Shared,
    /// The request is rejected with 400.
    #[default]
    Rejected,
    /// The request passes uncounted.
    Passed,
}

pub(super) type Cost = Arc<dyn Fn(&RequestHead<'_>) -> u64 + Send + Sync>;
pub(super) type NotAllowedResponse =
    Arc<dyn Fn(&NotAllowed<'_>, &RequestHead<'_>) -> Response<Bytes> + Send + Sync>;

/// Configuration of a layer.
pub(super) struct Rules<S> {
    pub(super) limiter: Arc<StoreLimiter<S>>,
    pub(super) choice: TierChoice,
    pub(super) key: Key,
    pub(super) missing_key: MissingKey,
    pub(super) cost: Option<Cost>,
    pub(super) payment: Payment,
    pub(super) style: HeaderStyle,
    pub(super) records_all: bool,
    pub(super) not_allowed: Option<NotAllowedResponse>,
}

impl<S> Clone for Rules<S> {
    fn clone(&self) -> Self {
        Self {
            limiter: Arc::clone(&self.limiter),
            choice: self.choice.clone(),
            key: self.key.clone(),
            missing_key: self.missing_key,
            cost: self.cost.clone(),
            payment: self.payment.clone(),
            style: self.style,
            records_all: self.records_all,
            not_allowed: self.not_allowed.clone(),
        }
    }
}
