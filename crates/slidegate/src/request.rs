//! A request to a limiter: key, cost and tier.

/// A request of a key, for the verbs of a [`Limiter`](crate::Limiter).
///
/// Text and bytes convert to a request of this key with a cost of 1.
///
/// ```
/// use slidegate::{Limiter, Request};
///
/// let uploads = Limiter::builder("uploads").quotas(["100/1h"]).tier("premium", ["5000/1h"]).in_memory()?;
/// assert_eq!(uploads.check_now("user:1")?.remaining(), 99);
/// assert_eq!(uploads.check_now(Request::key("user:2").cost(40))?.remaining(), 60);
/// assert_eq!(uploads.check_now(Request::key("user:3").cost(40).tier("premium"))?.remaining(), 4960);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request<'a> {
    pub(crate) key: &'a [u8],
    pub(crate) cost: u64,
    pub(crate) tier: Option<&'a str>,
}

impl<'a> Request<'a> {
    /// Creates a request of `key`, which may be any bytes, with a cost of 1.
    #[inline(always)]
    pub fn key<K: AsRef<[u8]> + ?Sized>(key: &'a K) -> Self {
        Self { key: key.as_ref(), cost: 1, tier: None }
    }

    /// Sets the units to spend, charge or refund. 0 spends nothing.
    #[inline(always)]
    pub fn cost(self, cost: u64) -> Self {
        Self { cost, ..self }
    }

    /// Sets the tier, whose quotas apply in place of those of the policy.
    #[inline(always)]
    pub fn tier(self, tier: &'a str) -> Self {
        Self { tier: Some(tier), ..self }
    }
}

impl<'a, K: AsRef<[u8]> + ?Sized> From<&'a K> for Request<'a> {
    #[inline(always)]
    fn from(key: &'a K) -> Self {
        Self::key(key)
    }
}
