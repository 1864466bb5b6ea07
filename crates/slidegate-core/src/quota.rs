//! A quota: a limit over a window, with its algorithm.

use core::convert::Infallible;
use core::fmt;
use core::num::NonZeroU32;
use core::time::Duration;

/// The largest limit, burst and cost: 2^48.
pub const MAX_LIMIT: u64 = 1 << 48;
/// The longest window: 366 days.
pub const MAX_WINDOW_MS: u64 = 366 * 24 * 60 * 60 * 1000;
/// Default number of (timestamp, count) pairs in a strict window.
pub const DEFAULT_SLOTS: u8 = 16;
/// Allowed numbers of pairs in a strict window.
pub const SLOTS_RANGE: core::ops::RangeInclusive<u8> = 4..=64;

/// Algorithm of a quota.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Algorithm {
    /// Two counters, the previous one weighted by its overlap with the last window. The default.
    #[default]
    SlidingWindow,
    /// A bounded log that never admits more than the limit in any window.
    StrictWindow,
    /// The time of every admission: exact, and as large as the limit.
    SlidingLog,
    /// One counter per window; up to twice the limit across a boundary.
    FixedWindow,
    /// A bucket of tokens that refills steadily. Equivalent to GCRA.
    TokenBucket,
}

impl Algorithm {
    /// All algorithms, in the order in which the documentation names them.
    pub const ALL: &'static [Self] =
        &[Self::SlidingWindow, Self::StrictWindow, Self::SlidingLog, Self::FixedWindow, Self::TokenBucket];

    /// Returns the name in quota text, config and JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::SlidingWindow => "sliding-window",
            Self::StrictWindow => "strict-window",
            Self::SlidingLog => "sliding-log",
            Self::FixedWindow => "fixed-window",
            Self::TokenBucket => "token-bucket",
        }
    }

    /// Returns the number of the algorithm in the scripts of remote stores.
    #[doc(hidden)]
    pub const fn code(self) -> u8 {
        match self {
            Self::SlidingWindow => 1,
            Self::StrictWindow => 2,
            Self::SlidingLog => 3,
            Self::FixedWindow => 4,
            Self::TokenBucket => 5,
        }
    }

    /// Returns whether the algorithm never admits more than the limit in any window.
    #[inline]
    pub const fn is_exact(self) -> bool {
        match self {
            Self::StrictWindow | Self::SlidingLog => true,
            Self::SlidingWindow | Self::FixedWindow | Self::TokenBucket => false,
        }
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl core::str::FromStr for Algorithm {
    type Err = QuotaError;

    fn from_str(text: &str) -> Result<Self, QuotaError> {
        Self::ALL.iter().copied().find(|algorithm| algorithm.name() == text).ok_or_else(|| {
            let names = Self::ALL.iter().map(|algorithm| algorithm.name()).collect::<Vec<_>>().join(", ");
            QuotaError::new("algorithm", format!("{text:?} is not one of {names}"))
        })
    }
}

/// Start of a key's windows (sliding-window and fixed-window).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Anchor {
    /// Whole multiples of the window since the Unix epoch.
    #[default]
    Epoch,
    /// The first request of the key, and after each expiry of its count the next request.
    FirstRequest,
}

impl Anchor {
    /// Returns the name in quota text, config and JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Epoch => "epoch",
            Self::FirstRequest => "first-request",
        }
    }
}

impl core::str::FromStr for Anchor {
    type Err = QuotaError;

    fn from_str(text: &str) -> Result<Self, QuotaError> {
        [Self::Epoch, Self::FirstRequest]
            .into_iter()
            .find(|anchor| anchor.name() == text)
            .ok_or_else(|| QuotaError::new("anchor", format!("{text:?} is not one of epoch, first-request")))
    }
}

/// A limit over a window. Every value is valid: the constructors reject invalid limits and windows.
///
/// ```
/// use slidegate_core::{Algorithm, Quota};
///
/// let quota: Quota = "100/1m".parse()?;
/// assert_eq!((quota.limit(), quota.window_ms()), (100, 60_000));
/// let strict = quota.with_algorithm(Algorithm::StrictWindow);
/// assert_eq!(strict.to_string(), "100/1m strict-window");
/// # Ok::<(), slidegate_core::QuotaError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Quota {
    limit: u64,
    window_ms: u64,
    /// Capacity of a token bucket. Equal to the limit unless set, and for all other algorithms.
    burst: u64,
    algorithm: Algorithm,
    anchor: Anchor,
    slots: u8,
}

impl Quota {
    /// Returns a quota of `limit` per `window` with the default algorithm. A limit of 0 denies every cost above 0, without a
    /// retry time.
    pub fn new(limit: u64, window: Duration) -> Result<Self, QuotaError> {
        if limit > MAX_LIMIT {
            return Err(QuotaError::new("limit", format!("{limit} is not between 0 and 2^48 ({MAX_LIMIT})")));
        }
        let window_ms = u64::try_from(window.as_millis()).unwrap_or(u64::MAX);
        if !(1..=MAX_WINDOW_MS).contains(&window_ms) || !window.subsec_nanos().is_multiple_of(1_000_000) {
            let message =
                format!("{window:?} is not a whole number of milliseconds between 1 ms and 366 days");
            return Err(QuotaError::new("window", message));
        }
        Ok(Self::sliding_window(limit, window_ms))
    }

    /// Returns a sliding window of a valid limit and window.
    pub(crate) const fn sliding_window(limit: u64, window_ms: u64) -> Self {
        Self {
            limit,
            window_ms,
            burst: limit,
            algorithm: Algorithm::SlidingWindow,
            anchor: Anchor::Epoch,
            slots: DEFAULT_SLOTS,
        }
    }

    /// Returns the quota of a state. The rate and the capacity affect token buckets only.
    pub(crate) const fn of_state(algorithm: Algorithm, window_ms: u64, (limit, burst): (u64, u64)) -> Self {
        Self { limit, burst, algorithm, ..Self::sliding_window(0, window_ms) }
    }

    /// Returns the quota with another algorithm, whose options have their default values.
    #[must_use]
    pub fn with_algorithm(mut self, algorithm: Algorithm) -> Self {
        self.algorithm = algorithm;
        self.burst = self.limit;
        self.anchor = Anchor::Epoch;
        self.slots = DEFAULT_SLOTS;
        self
    }

    /// Sets the capacity of a token bucket.
    pub fn with_burst(mut self, burst: u64) -> Result<Self, QuotaError> {
        self.require("burst", &[Algorithm::TokenBucket])?;
        if self.limit == 0 {
            return Err(QuotaError::new("burst", "requires a limit of at least 1, which refills the bucket"));
        }
        if !(1..=MAX_LIMIT).contains(&burst) {
            return Err(QuotaError::new("burst", format!("{burst} is not between 1 and 2^48 ({MAX_LIMIT})")));
        }
        self.burst = burst;
        Ok(self)
    }

    /// Sets the start of the windows.
    pub fn with_anchor(mut self, anchor: Anchor) -> Result<Self, QuotaError> {
        self.require("anchor", &[Algorithm::SlidingWindow, Algorithm::FixedWindow])?;
        self.anchor = anchor;
        Ok(self)
    }

    /// Sets the number of pairs of a strict window. It must be even, because the proof that two pairs can always be merged
    /// requires an even number.
    pub fn with_slots(mut self, slots: u64) -> Result<Self, QuotaError> {
        self.require("slots", &[Algorithm::StrictWindow])?;
        match u8::try_from(slots) {
            Ok(count) if SLOTS_RANGE.contains(&count) && count.is_multiple_of(2) => self.slots = count,
            _ => {
                return Err(QuotaError::new(
                    "slots",
                    format!("{slots} is not an even number between 4 and 64"),
                ));
            }
        }
        Ok(self)
    }

    /// Returns the share of one of `nodes`.
    pub(crate) fn share(mut self, nodes: NonZeroU32) -> Self {
        let nodes = u64::from(nodes.get());
        let of = |limit: u64| (limit / nodes).max(limit.min(1));
        (self.limit, self.burst) = (of(self.limit), of(self.burst));
        self
    }

    /// The limit.
    #[inline]
    pub const fn limit(&self) -> u64 {
        self.limit
    }

    /// The window in milliseconds.
    #[inline]
    pub const fn window_ms(&self) -> u64 {
        self.window_ms
    }

    /// The most units that can be spent at one moment: the burst of a token bucket, and the limit for all other algorithms.
    #[inline]
    pub const fn capacity(&self) -> u64 {
        self.burst
    }

    /// The algorithm.
    #[inline]
    pub const fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// The start of the windows.
    #[inline]
    pub const fn anchor(&self) -> Anchor {
        self.anchor
    }

    /// The number of pairs in a strict window.
    #[inline]
    pub const fn slots(&self) -> u8 {
        self.slots
    }

    /// Returns the option of the algorithm as a number in the scripts of remote stores.
    #[doc(hidden)]
    pub const fn option_code(&self) -> u8 {
        match self.algorithm {
            Algorithm::SlidingWindow | Algorithm::FixedWindow => match self.anchor {
                Anchor::Epoch => 0,
                Anchor::FirstRequest => 1,
            },
            Algorithm::StrictWindow => self.slots,
            Algorithm::SlidingLog | Algorithm::TokenBucket => 0,
        }
    }

    /// The start of the window of length `window_ms` that contains `now_ms`, for a key without a count.
    #[inline]
    pub(crate) const fn window_start_ms(&self, window_ms: u64, now_ms: u64) -> u64 {
        match self.anchor {
            Anchor::Epoch => now_ms - now_ms % window_ms,
            Anchor::FirstRequest => now_ms,
        }
    }

    fn require(&self, field: &'static str, algorithms: &[Algorithm]) -> Result<(), QuotaError> {
        if algorithms.contains(&self.algorithm) {
            return Ok(());
        }
        let supported = algorithms.iter().map(|a| a.name()).collect::<Vec<_>>().join(" or ");
        Err(QuotaError::new(field, format!("requires {supported}; the algorithm is {}", self.algorithm)))
    }
}

/// Error of an invalid quota or policy: the field, and its allowed values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuotaError {
    field: &'static str,
    message: String,
}

impl QuotaError {
    pub(crate) fn new(field: &'static str, message: impl Into<String>) -> Self {
        Self { field, message: message.into() }
    }

    /// The name of the invalid field in config and JSON.
    pub fn field(&self) -> &'static str {
        self.field
    }

    /// The invalid value and the allowed values.
    pub fn message(&self) -> &str {
        &self.message
    }
}

impl fmt::Display for QuotaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.message)
    }
}

impl core::error::Error for QuotaError {}

/// A [`Quota`] converts to itself without an error.
impl From<Infallible> for QuotaError {
    fn from(error: Infallible) -> Self {
        match error {}
    }
}
