//! Choice of the tier that applies to a request.

use std::borrow::Cow;
use std::sync::Arc;

use super::head::RequestHead;
use super::tier::Tier;

pub(super) type Choose = Arc<dyn Fn(&RequestHead<'_>) -> Option<Tier> + Send + Sync>;
pub(super) type Skip = Arc<dyn Fn(&RequestHead<'_>) -> bool + Send + Sync>;

/// Choice of the tier that applies to a request.
#[derive(Clone)]
pub(super) enum TierChoice {
    /// One tier for all requests. It is borrowed, so a request does not touch its reference count.
    Fixed(Tier),
    /// The tier that a function returns.
    Chosen(Choose),
    /// No tier for requests that a function matches.
    Except(Skip, Box<Self>),
}

impl TierChoice {
    /// Returns the tier of a request, or `None` if the request is not limited.
    pub(super) fn tier(&self, request: &RequestHead<'_>) -> Option<Cow<'_, Tier>> {
        match self {
            Self::Fixed(tier) => Some(Cow::Borrowed(tier)),
            Self::Chosen(choose) => choose(request).map(Cow::Owned),
            Self::Except(is_skipped, _) if is_skipped(request) => None,
            Self::Except(_, otherwise) => otherwise.tier(request),
        }
    }
}
