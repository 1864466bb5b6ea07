//! Choice of the tier that applies to a request.

use std::borrow::Cow;
use std::sync::Arc;

use super::head::RequestHead;
use super::tier::Tier;
use crate::error::StoreError;
use crate::limiter::Limiter;

pub(super) type Choose = Arc<dyn Fn(&RequestHead<'_>) -> Option<Tier> + Send + Sync>;
pub(super) type IsSkipped = Arc<dyn Fn(&RequestHead<'_>) -> bool + Send + Sync>;
pub(super) type TierName = Arc<dyn for<'a> Fn(&'a RequestHead<'_>) -> Option<&'a str> + Send + Sync>;

/// Choice of the tier that applies to a request. Tiers are borrowed where that is possible, so that a request does not
/// change their reference counts.
#[derive(Clone)]
pub(super) enum TierChoice {
    /// One tier for all requests.
    Fixed(Tier),
    /// The tier that a function returns.
    Chosen(Choose),
    /// The tier that a function names.
    Named(Arc<NamedTiers>),
    /// No tier for requests that a function matches.
    Except(IsSkipped, Arc<Self>),
}

/// Tiers of a limiter.
pub(super) struct NamedTiers {
    limiter: Limiter,
    tiers: foldhash::HashMap<String, Tier>,
    name: TierName,
    /// Choice for requests without a named tier.
    otherwise: TierChoice,
}

impl TierChoice {
    /// Returns the choice of the limiter's tier that `name` returns, and of `self` for requests without a named tier.
    pub(super) fn named(self, limiter: Limiter, name: TierName) -> Self {
        let of = |(name, policy): (&str, _)| (name.to_owned(), Tier::over(limiter.store(), policy));
        let tiers = limiter.tier_policies().map(of).collect();
        Self::Named(Arc::new(NamedTiers { limiter, tiers, name, otherwise: self }))
    }

    /// Returns the tier of a request: none passes uncounted, and an error rejects the request.
    #[inline]
    pub(super) fn tier(&self, request: &RequestHead<'_>) -> Option<Result<Cow<'_, Tier>, StoreError>> {
        match self {
            Self::Fixed(tier) => Some(Ok(Cow::Borrowed(tier))),
            _ => self.chosen_tier(request),
        }
    }

    fn chosen_tier(&self, request: &RequestHead<'_>) -> Option<Result<Cow<'_, Tier>, StoreError>> {
        match self {
            Self::Fixed(tier) => Some(Ok(Cow::Borrowed(tier))),
            Self::Chosen(choose) => choose(request).map(|tier| Ok(Cow::Owned(tier))),
            Self::Named(named) => named.tier(request),
            Self::Except(is_skipped, _) if is_skipped(request) => None,
            Self::Except(_, otherwise) => otherwise.tier(request),
        }
    }
}

impl NamedTiers {
    fn tier(&self, request: &RequestHead<'_>) -> Option<Result<Cow<'_, Tier>, StoreError>> {
        // A skipped request stays skipped.
        let otherwise = self.otherwise.tier(request)?;
        let Some(name) = (self.name)(request) else { return Some(otherwise) };
        let tier = self.tiers.get(name).map(Cow::Borrowed);
        Some(tier.ok_or_else(|| self.limiter.unknown_tier(name)))
    }
}
