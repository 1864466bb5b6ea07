//! The counter of any algorithm, or a block: the record of one quota of one key in a store.

use crate::counter::{CountBreakdown, Counter, chargeable};
use crate::fixed_window::{FixedWindow, FixedWindowView};
use crate::moment::Moment;
use crate::quota::{Algorithm, MAX_WINDOW_MS, Quota};
use crate::sliding_log::{SlidingLog, SlidingLogView};
use crate::sliding_window::{SlidingWindow, SlidingWindowView};
use crate::strict_window::{StrictWindow, StrictWindowView};
use crate::token_bucket::{TokenBucket, TokenBucketView};

/// The counter of any algorithm, or a block.
///
/// A state belongs to the quota with its algorithm and window, and for a token bucket also with its rate and capacity. The
/// position of the quota does not matter.
///
/// A changed policy carries counts over:
///
/// - A quota without its own state starts with a copy of the nearest state of its algorithm. Without such a state it starts empty.
/// - The states of other versions of the policy are retained while they count something.
/// - Spent and refunded units count in every state of the policy's algorithms. Versions that are in use at the same time or in
///   turn (by tiers, on two servers, before and after a reload) each have a complete count.
/// - For units that another version has spent, a token bucket owes at most its capacity.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "each variant is named after its counter")]
pub enum State {
    SlidingWindow(SlidingWindow),
    StrictWindow(StrictWindow),
    SlidingLog(Box<SlidingLog>),
    FixedWindow(FixedWindow),
    TokenBucket(TokenBucket),
    /// The key is denied until this time.
    Block {
        until_ms: u64,
    },
}

/// The view of any counter.
#[derive(Clone, Copy, Debug)]
#[expect(missing_docs, reason = "each variant is named after its counter")]
pub enum StateView {
    SlidingWindow(SlidingWindowView),
    StrictWindow(StrictWindowView),
    SlidingLog(SlidingLogView),
    FixedWindow(FixedWindowView),
    TokenBucket(TokenBucketView),
}

/// Calls the same function for each kind of counter and view. A view always comes from the state it is used with, so both have
/// the same kind.
macro_rules! each {
    ($state:expr, $view:expr, |$counter:ident, $counter_view:ident| $call:expr, else $otherwise:expr) => {
        match ($state, $view) {
            (State::SlidingWindow($counter), StateView::SlidingWindow($counter_view)) => $call,
            (State::StrictWindow($counter), StateView::StrictWindow($counter_view)) => $call,
            (State::SlidingLog($counter), StateView::SlidingLog($counter_view)) => $call,
            (State::FixedWindow($counter), StateView::FixedWindow($counter_view)) => $call,
            (State::TokenBucket($counter), StateView::TokenBucket($counter_view)) => $call,
            _ => {
                debug_assert!(false, "a view of another algorithm");
                $otherwise
            }
        }
    };
}

impl State {
    /// The algorithm of the counter; `None` for a block.
    pub fn algorithm(&self) -> Option<Algorithm> {
        match self {
            Self::SlidingWindow(_) => Some(Algorithm::SlidingWindow),
            Self::StrictWindow(_) => Some(Algorithm::StrictWindow),
            Self::SlidingLog(_) => Some(Algorithm::SlidingLog),
            Self::FixedWindow(_) => Some(Algorithm::FixedWindow),
            Self::TokenBucket(_) => Some(Algorithm::TokenBucket),
            Self::Block { .. } => None,
        }
    }

    /// Whether the state belongs to this quota. Except for a token bucket, the limit may have changed.
    pub fn belongs_to(&self, quota: &Quota) -> bool {
        match self {
            Self::TokenBucket(counter) => {
                quota.algorithm() == Algorithm::TokenBucket && counter.belongs_to(quota)
            }
            _ => self.algorithm() == Some(quota.algorithm()) && self.window_ms() == quota.window_ms(),
        }
    }

    /// Counts units that another version of the policy has spent. A window counts all of them, even beyond its limit, and they
    /// expire with the window. A token bucket owes at most its capacity for them, so that no client waits longer than the
    /// bucket takes to fill.
    pub(crate) fn spend_at(&mut self, now: Moment, cost: u64) {
        let Some(quota) = self.quota().filter(|_| cost > 0) else { return };
        let view = self.view(&quota, now);
        if let (Self::TokenBucket(counter), StateView::TokenBucket(view)) = (&mut *self, &view) {
            counter.commit_within_capacity(view, &quota, cost);
            return;
        }
        let spent = chargeable(Self::used(&view), cost);
        if spent > 0 {
            self.commit(&view, &quota, spent);
        }
    }

    /// Refunds units that were spent under another version of the policy.
    pub(crate) fn refund_at(&mut self, now: Moment, amount: u64) {
        let Some(quota) = self.quota() else { return };
        let view = self.view(&quota, now);
        if amount > 0 && Self::used(&view) > 0 {
            self.refund(&view, &quota, amount);
        }
    }

    /// The quota of the state, with the fields that the state contains; `None` for a block.
    fn quota(&self) -> Option<Quota> {
        let limits = match self {
            Self::TokenBucket(counter) => (counter.limit, counter.capacity),
            _ => (0, 0),
        };
        Some(Quota::of_state(self.algorithm()?, self.window_ms(), limits))
    }

    /// Whether both states belong to the same quota.
    pub(crate) fn is_equivalent(&self, other: &Self) -> bool {
        let bucket = |state: &Self| match state {
            Self::TokenBucket(counter) => Some((counter.limit, counter.capacity)),
            _ => None,
        };
        self.algorithm() == other.algorithm()
            && self.window_ms() == other.window_ms()
            && bucket(self) == bucket(other)
    }

    /// Whether the state has not expired. True even for a state far ahead of the clock.
    pub(crate) fn is_live(&self, now_ms: u64) -> bool {
        self.latest_and_expiry_ms().1 > now_ms
    }

    /// Whether a quota without its own state can start with a copy of this state.
    pub(crate) fn can_seed(&self, quota: &Quota, now_ms: u64) -> bool {
        self.algorithm() == Some(quota.algorithm()) && self.is_live(now_ms)
    }

    /// Whether the state is retained beside the states of another version of the policy: while it is live, and until
    /// `while_ms` have passed since its last update. False for a block, which is handled separately.
    pub(crate) fn is_retained(&self, now_ms: u64, while_ms: impl FnOnce() -> Option<u64>) -> bool {
        let (latest_ms, until_ms) = self.latest_and_expiry_ms();
        let is_far_ahead = latest_ms.saturating_sub(now_ms) > self.window_ms();
        self.algorithm().is_some()
            && !is_far_ahead
            && (until_ms > now_ms || while_ms().is_some_and(|ms| latest_ms.saturating_add(ms) > now_ms))
    }

    /// The window of the state's quota; 0 for a block.
    pub fn window_ms(&self) -> u64 {
        match self {
            Self::SlidingWindow(counter) => counter.window_ms,
            Self::StrictWindow(counter) => counter.window_ms(),
            Self::SlidingLog(counter) => counter.window_ms(),
            Self::FixedWindow(counter) => counter.window_ms,
            Self::TokenBucket(counter) => counter.window_ms,
            Self::Block { .. } => 0,
        }
    }

    /// The latest time in the state: of the newest request, or the start of the window. A clock that shows an earlier time has
    /// stepped back.
    pub fn latest_ms(&self) -> u64 {
        self.latest_and_expiry_ms().0
    }

    /// The time from which the state counts nothing under its own quota; `None` if it has expired. A state more than a window
    /// ahead of the clock, which has stepped back since, counts as expired. Otherwise it would be stored until that time.
    pub fn expires_at_ms(&self, now_ms: u64) -> Option<u64> {
        let (latest_ms, until_ms) = self.latest_and_expiry_ms();
        let is_far_ahead = match self {
            Self::Block { until_ms } => until_ms.saturating_sub(now_ms) > MAX_WINDOW_MS,
            _ => latest_ms.saturating_sub(now_ms) > self.window_ms(),
        };
        (until_ms > now_ms && !is_far_ahead).then_some(until_ms)
    }

    fn latest_and_expiry_ms(&self) -> (u64, u64) {
        match self {
            Self::SlidingWindow(counter) => (counter.start_ms, counter.expires_at_ms()),
            Self::StrictWindow(counter) => counter.newest_and_expiry_ms(),
            Self::SlidingLog(counter) => counter.newest_and_expiry_ms(),
            Self::FixedWindow(counter) => (counter.start_ms, counter.expires_at_ms()),
            Self::TokenBucket(counter) => (counter.at_ms, counter.expires_at_ms()),
            Self::Block { until_ms } => (0, *until_ms),
        }
    }

    /// Bytes of the heap allocations, one entry for each allocation.
    pub fn heap_bytes(&self) -> [usize; 2] {
        match self {
            Self::StrictWindow(counter) => [counter.heap_bytes(), 0],
            Self::SlidingLog(counter) => [size_of::<SlidingLog>(), counter.heap_bytes()],
            Self::SlidingWindow(_) | Self::FixedWindow(_) | Self::TokenBucket(_) | Self::Block { .. } => {
                [0, 0]
            }
        }
    }

    /// Bytes by which the heap allocations can grow when the next units are counted.
    pub fn growth_bytes(&self) -> usize {
        match self {
            Self::StrictWindow(counter) => counter.growth_bytes(),
            Self::SlidingLog(counter) => counter.growth_bytes(),
            Self::SlidingWindow(_) | Self::FixedWindow(_) | Self::TokenBucket(_) | Self::Block { .. } => 0,
        }
    }
}

impl Counter for State {
    type View = StateView;

    fn empty(quota: &Quota) -> Self {
        match quota.algorithm() {
            Algorithm::SlidingWindow => Self::SlidingWindow(SlidingWindow::empty(quota)),
            Algorithm::StrictWindow => Self::StrictWindow(StrictWindow::empty(quota)),
            Algorithm::SlidingLog => Self::SlidingLog(Box::new(SlidingLog::empty(quota))),
            Algorithm::FixedWindow => Self::FixedWindow(FixedWindow::empty(quota)),
            Algorithm::TokenBucket => Self::TokenBucket(TokenBucket::empty(quota)),
        }
    }

    fn view(&self, quota: &Quota, now: Moment) -> StateView {
        match self {
            Self::SlidingWindow(counter) => StateView::SlidingWindow(counter.view(quota, now)),
            Self::StrictWindow(counter) => StateView::StrictWindow(counter.view(quota, now)),
            Self::SlidingLog(counter) => StateView::SlidingLog(counter.view(quota, now)),
            Self::FixedWindow(counter) => StateView::FixedWindow(counter.view(quota, now)),
            Self::TokenBucket(counter) => StateView::TokenBucket(counter.view(quota, now)),
            Self::Block { .. } => {
                debug_assert!(false, "a block has no quota");
                StateView::FixedWindow(FixedWindow::empty(quota).view(quota, now))
            }
        }
    }

    fn used(view: &StateView) -> u64 {
        match view {
            StateView::SlidingWindow(view) => SlidingWindow::used(view),
            StateView::StrictWindow(view) => StrictWindow::used(view),
            StateView::SlidingLog(view) => SlidingLog::used(view),
            StateView::FixedWindow(view) => FixedWindow::used(view),
            StateView::TokenBucket(view) => TokenBucket::used(view),
        }
    }

    fn breakdown(view: &StateView) -> CountBreakdown {
        match view {
            StateView::SlidingWindow(view) => SlidingWindow::breakdown(view),
            StateView::StrictWindow(view) => StrictWindow::breakdown(view),
            StateView::SlidingLog(view) => SlidingLog::breakdown(view),
            StateView::FixedWindow(view) => FixedWindow::breakdown(view),
            StateView::TokenBucket(view) => TokenBucket::breakdown(view),
        }
    }

    fn is_adjusted(view: &StateView) -> bool {
        match view {
            StateView::SlidingWindow(view) => SlidingWindow::is_adjusted(view),
            StateView::StrictWindow(view) => StrictWindow::is_adjusted(view),
            StateView::SlidingLog(view) => SlidingLog::is_adjusted(view),
            StateView::FixedWindow(view) => FixedWindow::is_adjusted(view),
            StateView::TokenBucket(view) => TokenBucket::is_adjusted(view),
        }
    }

    fn retry_at_ms(&self, view: &StateView, quota: &Quota, cost: u64) -> u64 {
        each!(self, view, |counter, view| counter.retry_at_ms(view, quota, cost), else 0)
    }

    fn reset_at_ms(&self, view: &StateView, quota: &Quota, spent: u64) -> u64 {
        each!(self, view, |counter, view| counter.reset_at_ms(view, quota, spent), else 0)
    }

    fn commit(&mut self, view: &StateView, quota: &Quota, spent: u64) {
        each!(self, view, |counter, view| counter.commit(view, quota, spent), else ());
    }

    fn refund(&mut self, view: &StateView, quota: &Quota, amount: u64) {
        each!(self, view, |counter, view| counter.refund(view, quota, amount), else ());
    }
}
