//! What was decided about a request, and how it is told.

use std::sync::Arc;

use http::Response;
use slidegate_core::{Decision, Source};

use super::style::HeaderStyle;
use super::tier::Tier;
use crate::clock::Clock;

/// What was decided about a request: in the extensions of the response, for whoever logs it.
///
/// Found there if there is something to tell: a denial, a decision that the store itself has not made, or one with a
/// shadow. [`RateLimitLayer::record_all`](super::RateLimitLayer::record_all) puts it there for every request.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Limited {
    /// The policy that it met.
    pub tier: Tier,
    /// What was decided: with its source, and with its shadow if there is one.
    pub decision: Decision,
    /// What another layer has decided, further in.
    pub inner: Option<Arc<Self>>,
}

impl Limited {
    pub(super) fn new(tier: Tier, decision: Decision) -> Self {
        Self { tier, decision, inner: None }
    }
}

/// Says on a response what was decided at a moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Teller {
    style: HeaderStyle,
    records_all: bool,
    now_ms: u64,
}

impl Teller {
    pub(super) fn new(style: HeaderStyle, records_all: bool, clock: &dyn Clock) -> Self {
        // Only one style names a time, and it is that of the decision: the response may be long in coming.
        let now_ms = if style == HeaderStyle::LegacyEpoch { clock.now_ms() } else { 0 };
        Self { style, records_all, now_ms }
    }

    pub(super) fn tell<B>(self, response: &mut Response<B>, mut limited: Limited) {
        self.style.write(response.headers_mut(), &limited.tier, &limited.decision, self.now_ms);
        if self.records_all || is_notable(&limited.decision) {
            limited.inner = response.extensions_mut().remove().map(Arc::new);
            response.extensions_mut().insert(limited);
        }
    }
}

/// Three allocations for each request are too many for what is nearly always the same.
fn is_notable(decision: &Decision) -> bool {
    !decision.is_allowed() || decision.source() != Source::Store || decision.shadow().is_some()
}
