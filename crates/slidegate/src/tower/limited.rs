//! Decision about a request, and its headers and extension on the response.

use std::sync::Arc;

use http::Response;
use slidegate_core::{Decision, Source};

use super::tier::Tier;
use crate::headers::{HeaderStyle, ResponseHeaders};
use crate::store::Store;

/// Decision about a request, in the extensions of its response, for logging.
///
/// Present if it is notable: a denial, a decision that the store has not made, or one with a shadow.
/// [`RateLimitLayer::record_all`](super::RateLimitLayer::record_all) adds it to every response.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Limited {
    /// Policy that applied.
    pub tier: Tier,
    /// Decision, with its source and with its shadow, if any.
    pub decision: Decision,
    /// Decision of an inner layer.
    pub inner: Option<Arc<Self>>,
}

impl Limited {
    pub(super) fn new(tier: Tier, decision: Decision) -> Self {
        Self { tier, decision, inner: None }
    }
}

/// Writes a decision onto a response.
#[derive(Clone, Copy, Debug)]
pub(super) struct Annotator {
    style: HeaderStyle,
    records_all: bool,
    now_ms: u64,
}

impl Annotator {
    /// Creates an annotator for a decision at the time of the store's clock.
    pub(super) fn new(style: HeaderStyle, records_all: bool, store: &impl Store) -> Self {
        // Only this style contains a time, namely that of the decision; the response may take long.
        let now_ms = if style == HeaderStyle::LegacyEpoch { store.clock().now_ms() } else { 0 };
        Self { style, records_all, now_ms }
    }

    pub(super) fn annotate<B>(self, response: &mut Response<B>, limited: Limited) {
        self.style.write(response.headers_mut(), limited.tier.headers(), &limited.decision, self.now_ms);
        if self.records(&limited.decision) {
            record(response, limited);
        }
    }

    /// Prepares the annotation of a response that is not there yet.
    #[inline(always)]
    pub(super) fn annotation(self, tier: &Tier, decision: &Decision) -> Annotation {
        let headers = ResponseHeaders::new(self.style, tier.headers(), decision, self.now_ms);
        Annotation { headers, limited: self.records(decision).then(|| boxed(tier, decision)) }
    }

    fn records(self, decision: &Decision) -> bool {
        self.records_all || is_notable(decision)
    }
}

/// Headers and extension of a decision for a response that is not there yet.
pub(super) struct Annotation {
    headers: ResponseHeaders,
    limited: Option<Box<Limited>>,
}

impl Annotation {
    pub(super) fn apply<B>(self, response: &mut Response<B>) {
        self.headers.write(response.headers_mut());
        if let Some(limited) = self.limited {
            record(response, *limited);
        }
    }
}

#[inline(never)]
fn boxed(tier: &Tier, decision: &Decision) -> Box<Limited> {
    Box::new(Limited::new(tier.clone(), decision.clone()))
}

fn record<B>(response: &mut Response<B>, mut limited: Limited) {
    limited.inner = response.extensions_mut().remove().map(Arc::new);
    response.extensions_mut().insert(limited);
}

/// Recording every decision would cost three allocations per request.
fn is_notable(decision: &Decision) -> bool {
    !decision.is_allowed() || decision.source() != Source::Store || decision.shadow().is_some()
}
