//! Clocks. Only this file reads a clock or sleeps; clippy bans both elsewhere.
#![expect(clippy::disallowed_methods, reason = "the file that wraps the clocks")]

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use slidegate_core::Moment;

/// A started sleep.
pub type Sleep<'a> = Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

/// Source of time for stores without a clock of their own, and of sleeps. Time is consistent between threads: a reading
/// is never earlier than a reading that happened before it on another thread, unless the clock was set back.
pub trait Clock: Send + Sync + 'static {
    /// Returns milliseconds since the Unix epoch. The actual time is not before this, and at most
    /// [`grain_ms`](Self::grain_ms) later.
    fn now_ms(&self) -> u64;

    /// Maximum lag of [`now_ms`](Self::now_ms), in milliseconds: 1 for a running clock that rounds down to
    /// milliseconds. The value is constant.
    fn grain_ms(&self) -> u64 {
        1
    }

    /// Returns the current time as precisely as this clock can read it. The exact algorithms decide by it. Its grain is constant.
    fn moment(&self) -> Moment {
        Moment::with_grain(self.now_ms(), self.grain_ms())
    }

    /// Waits until [`now_ms`](Self::now_ms) is at least `ms` later than now.
    fn sleep(&self, ms: u64) -> Sleep<'_>;
}

/// The clock of this process: the wall clock at its creation, plus a monotonic clock since then. Setting the wall clock
/// does not move the limits.
///
/// Reads the kernel's coarse clock, which costs about 3 ns; a precise clock costs about 25 ns. The coarse clock lags by
/// up to one tick (1 to 10 ms, depending on the kernel's configuration), which is its grain. The exact algorithms,
/// `strict-window` and `sliding-log`, read the precise clock anyway. The decisions of the others are exact in coarse
/// time, and a client with a better clock may see a wait that is up to a tick too long. If that matters, use
/// [`PreciseClock`]. Systems other than Linux have no coarse clock; there this clock is precise.
#[derive(Clone, Copy, Debug)]
pub struct SystemClock {
    wall_minus_monotonic_ms: u64,
    grain_ms: u64,
}

/// Like [`SystemClock`], but precise to the millisecond, at about 25 ns per reading.
#[derive(Clone, Copy, Debug)]
pub struct PreciseClock {
    wall_minus_monotonic_ms: u64,
}

impl Default for SystemClock {
    fn default() -> Self {
        Self { wall_minus_monotonic_ms: wall_ms().saturating_sub(coarse_ms()), grain_ms: coarse_grain_ms() }
    }
}

/// Returns a system clock of this process.
pub(crate) fn system_clock() -> &'static SystemClock {
    static CLOCK: LazyLock<SystemClock> = LazyLock::new(SystemClock::default);
    &CLOCK
}

impl Default for PreciseClock {
    fn default() -> Self {
        Self { wall_minus_monotonic_ms: wall_ms().saturating_sub(precise_ms()) }
    }
}

impl Clock for SystemClock {
    #[inline(always)]
    fn now_ms(&self) -> u64 {
        coarse_ms() + self.wall_minus_monotonic_ms
    }

    fn grain_ms(&self) -> u64 {
        self.grain_ms
    }

    fn moment(&self) -> Moment {
        Moment::with_grain(precise_ms() + self.wall_minus_monotonic_ms, PRECISE_GRAIN_MS)
    }

    fn sleep(&self, ms: u64) -> Sleep<'_> {
        sleep_on(self, ms)
    }
}

impl Clock for PreciseClock {
    #[inline(always)]
    fn now_ms(&self) -> u64 {
        precise_ms() + self.wall_minus_monotonic_ms
    }

    fn sleep(&self, ms: u64) -> Sleep<'_> {
        sleep_on(self, ms)
    }
}

fn sleep_on(clock: &impl Clock, ms: u64) -> Sleep<'_> {
    Box::pin(async move {
        let end_ms = clock.now_ms().saturating_add(ms);
        // The timer and the coarse clock differ by up to a tick, and the guarantee is in the clock's time.
        while let left_ms @ 1.. = end_ms.saturating_sub(clock.now_ms()) {
            tokio::time::sleep(Duration::from_millis(left_ms)).await;
        }
    })
}

/// Returns the wall clock's time. It can be set, so it serves only for comparison with other clocks.
#[cfg_attr(not(feature = "redis"), allow(unreachable_pub))]
pub(crate) fn wall_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, whole_ms)
}

fn whole_ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Lag of a precise reading, which is rounded down to a millisecond.
const PRECISE_GRAIN_MS: u64 = 1;

/// Returns the tick of the coarse clock, plus a millisecond for rounding down.
#[cfg(target_os = "linux")]
fn coarse_grain_ms() -> u64 {
    let tick = rustix::time::clock_getres(rustix::time::ClockId::MonotonicCoarse);
    ms_of(tick) + u64::from(tick.tv_nsec % 1_000_000 > 0) + PRECISE_GRAIN_MS
}

#[cfg(not(target_os = "linux"))]
fn coarse_grain_ms() -> u64 {
    PRECISE_GRAIN_MS
}

#[cfg(target_os = "linux")]
#[inline(always)]
fn coarse_ms() -> u64 {
    kernel_ms(rustix::time::ClockId::MonotonicCoarse)
}

#[cfg(target_os = "linux")]
fn precise_ms() -> u64 {
    kernel_ms(rustix::time::ClockId::Monotonic)
}

#[cfg(target_os = "linux")]
#[inline(always)]
fn kernel_ms(clock: rustix::time::ClockId) -> u64 {
    // The variant that can return an error: the panicking variant writes to memory on each call, and a later locked
    // instruction has to wait for that write.
    match rustix::time::clock_gettime_dynamic(rustix::time::DynamicClockId::Known(clock)) {
        Ok(now) => ms_of(now),
        Err(_) => monotonic_ms_without_coarse_clock(),
    }
}

/// Reads the precise clock on a kernel without a coarse clock.
#[cfg(target_os = "linux")]
#[cold]
#[inline(never)]
fn monotonic_ms_without_coarse_clock() -> u64 {
    ms_of(rustix::time::clock_gettime(rustix::time::ClockId::Monotonic))
}

#[cfg(target_os = "linux")]
#[inline(always)]
fn ms_of(now: rustix::time::Timespec) -> u64 {
    #[expect(clippy::cast_sign_loss, reason = "the kernel's monotonic clock starts at zero")]
    // The nanoseconds of a second fit into 32 bits, and 32-bit division is faster.
    let (seconds, nanoseconds) = (now.tv_sec as u64, now.tv_nsec as u32);
    seconds * 1000 + u64::from(nanoseconds / 1_000_000)
}

#[cfg(not(target_os = "linux"))]
fn coarse_ms() -> u64 {
    precise_ms()
}

#[cfg(not(target_os = "linux"))]
fn precise_ms() -> u64 {
    use std::sync::OnceLock;
    use std::time::Instant;
    static START: OnceLock<Instant> = OnceLock::new();
    whole_ms(START.get_or_init(Instant::now).elapsed())
}

/// A clock that is chosen at run time.
///
/// The system clock has a variant of its own, which costs one comparison per reading. Every other clock costs an indirect
/// call.
#[derive(Clone)]
#[non_exhaustive]
pub enum AnyClock {
    /// The clock of this process.
    System(SystemClock),
    /// Any other clock.
    Other(Arc<dyn Clock>),
}

impl AnyClock {
    /// Wraps a clock other than the system clock.
    pub fn other(clock: impl Clock) -> Self {
        Self::Other(Arc::new(clock))
    }
}

impl Default for AnyClock {
    fn default() -> Self {
        Self::System(SystemClock::default())
    }
}

impl Clock for AnyClock {
    #[inline(always)]
    fn now_ms(&self) -> u64 {
        match self {
            Self::System(clock) => clock.now_ms(),
            Self::Other(clock) => clock.now_ms(),
        }
    }

    fn grain_ms(&self) -> u64 {
        match self {
            Self::System(clock) => clock.grain_ms(),
            Self::Other(clock) => clock.grain_ms(),
        }
    }

    fn moment(&self) -> Moment {
        match self {
            Self::System(clock) => clock.moment(),
            Self::Other(clock) => clock.moment(),
        }
    }

    fn sleep(&self, ms: u64) -> Sleep<'_> {
        match self {
            Self::System(clock) => clock.sleep(ms),
            Self::Other(clock) => clock.sleep(ms),
        }
    }
}

impl fmt::Debug for AnyClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::System(clock) => clock.fmt(f),
            Self::Other(_) => f.write_str("Other"),
        }
    }
}

/// A clock that moves only when it is set. Clones share the time.
///
/// ```
/// use std::time::Duration;
///
/// use slidegate::{Clock, ManualClock};
///
/// let clock = ManualClock::at(1000);
/// clock.advance(500);
/// clock.advance_by(Duration::from_secs(1));
/// assert_eq!(clock.now_ms(), 2500);
/// ```
#[derive(Clone, Debug, Default)]
pub struct ManualClock {
    shared: Arc<ManualTime>,
}

#[derive(Debug, Default)]
struct ManualTime {
    now_ms: AtomicU64,
    sleepers: Mutex<Vec<Waker>>,
}

impl ManualClock {
    /// Creates a clock at `now_ms`.
    pub fn at(now_ms: u64) -> Self {
        let clock = Self::default();
        clock.set(now_ms);
        clock
    }

    /// Sets the time, forward or back, and wakes all sleepers to check it.
    pub fn set(&self, now_ms: u64) {
        self.shared.now_ms.store(now_ms, Ordering::SeqCst);
        let sleepers =
            std::mem::take(&mut *self.shared.sleepers.lock().unwrap_or_else(PoisonError::into_inner));
        sleepers.into_iter().for_each(Waker::wake);
    }

    /// Moves the time forward by `ms` milliseconds.
    pub fn advance(&self, ms: u64) {
        self.set(self.now_ms() + ms);
    }

    /// Moves the time forward. The clock counts whole milliseconds; a part of one is dropped.
    pub fn advance_by(&self, span: Duration) {
        self.advance(whole_ms(span));
    }

    /// Returns the number of waiting sleeps.
    pub fn sleepers(&self) -> usize {
        self.shared.sleepers.lock().unwrap_or_else(PoisonError::into_inner).len()
    }
}

impl Clock for ManualClock {
    fn now_ms(&self) -> u64 {
        self.shared.now_ms.load(Ordering::SeqCst)
    }

    /// Zero, because the time is exact.
    fn grain_ms(&self) -> u64 {
        0
    }

    fn sleep(&self, ms: u64) -> Sleep<'_> {
        Box::pin(ManualSleep { clock: self, end_ms: self.now_ms().saturating_add(ms) })
    }
}

struct ManualSleep<'a> {
    clock: &'a ManualClock,
    end_ms: u64,
}

impl Future for ManualSleep<'_> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        // Under the lock, so that a concurrent `set` cannot miss this sleeper.
        let mut sleepers = self.clock.shared.sleepers.lock().unwrap_or_else(PoisonError::into_inner);
        if self.clock.now_ms() >= self.end_ms {
            return Poll::Ready(());
        }
        sleepers.push(context.waker().clone());
        Poll::Pending
    }
}
