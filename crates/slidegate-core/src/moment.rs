//! A reading of a clock, with its grain.

/// The latest moment that is distinguished, some 36 million years on: no sum of times overflows.
const LATEST_MS: u64 = 1 << 60;
/// No clock is coarser than a day.
const COARSEST_MS: u64 = 86_400_000;

/// The present moment as a clock shows it: not before `now_ms`, and at most `grain_ms` later.
///
/// The exact algorithms stamp late and check early: an admission carries the latest moment at which it can have happened, and a
/// check counts only the time that has certainly passed. No real window then contains more than the limit, whatever
/// the grain. All readings for one key come from clocks of the same grain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    now_ms: u64,
    grain_ms: u64,
}

impl Moment {
    /// A moment that is known to the millisecond, as injected time is.
    #[inline(always)]
    pub const fn exact(now_ms: u64) -> Self {
        Self::within(now_ms, 0)
    }

    /// A moment between `now_ms` and `grain_ms` later.
    #[inline(always)]
    pub const fn within(now_ms: u64, grain_ms: u64) -> Self {
        Self {
            now_ms: if now_ms < LATEST_MS { now_ms } else { LATEST_MS },
            grain_ms: if grain_ms < COARSEST_MS { grain_ms } else { COARSEST_MS },
        }
    }

    /// The time that has certainly come, in milliseconds since the Unix epoch.
    #[inline(always)]
    pub const fn now_ms(self) -> u64 {
        self.now_ms
    }

    /// How much later it may be.
    #[inline(always)]
    pub const fn grain_ms(self) -> u64 {
        self.grain_ms
    }

    /// The latest time that it can be.
    #[inline(always)]
    pub const fn latest_ms(self) -> u64 {
        self.now_ms + self.grain_ms
    }

    /// The time by which entries expire, and the stamp of an admission, given the newest stamp: time does not run
    /// backwards. `None` if the newest stamp is more than `window_ms` ahead, so that the clock stepped far back.
    pub(crate) fn after(self, newest_ms: u64, window_ms: u64) -> Option<Passed> {
        let known_ms = newest_ms.saturating_sub(self.grain_ms);
        if known_ms.saturating_sub(self.now_ms) > window_ms {
            return None;
        }
        Some(Passed { now_ms: self.now_ms.max(known_ms), stamp_ms: self.latest_ms().max(newest_ms) })
    }
}

/// A moment in the order of a log.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Passed {
    /// Time that has certainly passed.
    pub(crate) now_ms: u64,
    /// The stamp of an admission.
    pub(crate) stamp_ms: u64,
}
