//! A clock reading with its grain.

/// The latest time, 36 million years after the epoch. Later times are clamped, so that sums of times do not overflow.
const LATEST_MS: u64 = 1 << 60;
/// The largest grain: one day.
const COARSEST_MS: u64 = 86_400_000;

/// A clock reading with its grain: the real time is between `now_ms` and `now_ms + grain_ms`.
///
/// The exact algorithms stamp late and check early. An admission is stamped with the latest possible time, and a check uses the
/// earliest possible time. No real window then contains more units than the limit, with any grain. All readings for one key
/// come from clocks of the same grain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    now_ms: u64,
    grain_ms: u64,
}

impl Moment {
    /// Returns a reading that is exact to the millisecond, such as injected time.
    #[inline(always)]
    pub const fn exact(now_ms: u64) -> Self {
        Self::with_grain(now_ms, 0)
    }

    /// Returns the reading of a clock that is behind by at most `grain_ms`.
    #[inline(always)]
    pub const fn with_grain(now_ms: u64, grain_ms: u64) -> Self {
        Self {
            now_ms: if now_ms < LATEST_MS { now_ms } else { LATEST_MS },
            grain_ms: if grain_ms < COARSEST_MS { grain_ms } else { COARSEST_MS },
        }
    }

    /// The earliest possible time, in milliseconds since the Unix epoch.
    #[inline(always)]
    pub const fn now_ms(self) -> u64 {
        self.now_ms
    }

    /// The difference between the latest and the earliest possible time.
    #[inline(always)]
    pub const fn grain_ms(self) -> u64 {
        self.grain_ms
    }

    /// The latest possible time, in milliseconds since the Unix epoch.
    #[inline(always)]
    pub const fn latest_ms(self) -> u64 {
        self.now_ms + self.grain_ms
    }

    /// Returns the time for a log with this newest stamp, which never runs backwards. `None` if the newest stamp is more than
    /// `window_ms` ahead, because the clock stepped far back.
    pub(crate) fn log_time(self, newest_ms: u64, window_ms: u64) -> Option<LogTime> {
        let known_ms = newest_ms.saturating_sub(self.grain_ms);
        if known_ms.saturating_sub(self.now_ms) > window_ms {
            return None;
        }
        Some(LogTime { now_ms: self.now_ms.max(known_ms), stamp_ms: self.latest_ms().max(newest_ms) })
    }
}

/// The time of a decision by a log, not before its newest entry.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LogTime {
    /// The time for expiry: the earliest possible time.
    pub(crate) now_ms: u64,
    /// The stamp of an admission: the latest possible time.
    pub(crate) stamp_ms: u64,
}
