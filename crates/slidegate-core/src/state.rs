//! Any counter: what a store keeps for one quota of one key.

use crate::counter::{Counter, Parts, chargeable};
use crate::fixed_window::{FixedWindow, FixedWindowView};
use crate::moment::Moment;
use crate::quota::{Algorithm, MAX_WINDOW_MS, Quota};
use crate::sliding_log::{SlidingLog, SlidingLogView};
use crate::sliding_window::{SlidingWindow, SlidingWindowView};
use crate::strict_window::{StrictWindow, StrictWindowView};
use crate::token_bucket::{TokenBucket, TokenBucketView};

/// The counter of any algorithm, or a block, which a store keeps in the same place.
///
/// States belong to quotas by what they count: algorithm and window, and of a token bucket rate and capacity too. Where they
/// stand does not matter. A quota of a changed policy that has no state of its own begins with a copy of the nearest one of
/// its algorithm; another algorithm starts afresh. The states of other versions of the policy are kept behind its own for as
/// long as they count something, and those of its algorithms count every spent unit and give back every refunded one: versions
/// in use at the same time or in turn (by tiers, on two servers, before and after a reload) each find a complete count. A token
/// bucket owes at most its capacity for units that other versions have spent.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "each variant is named after its counter")]
pub enum State {
    SlidingWindow(SlidingWindow),
    StrictWindow(StrictWindow),
    SlidingLog(Box<SlidingLog>),
    FixedWindow(FixedWindow),
    TokenBucket(TokenBucket),
    /// The key is denied until then.
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

/// Calls the same function of whichever counter and view it is. A view always comes from the state it is used
/// with, so the two never differ in kind.
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
    /// The algorithm that counts here; none in a block.
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

    /// Whether it was counted for this quota, whose limit may have changed unless it is a token bucket's.
    pub fn is_of(&self, quota: &Quota) -> bool {
        match self {
            Self::TokenBucket(counter) => quota.algorithm() == Algorithm::TokenBucket && counter.is_of(quota),
            _ => self.algorithm() == Some(quota.algorithm()) && self.window_ms() == quota.window_ms(),
        }
    }

    /// Counts units that another version of the policy has spent. A window counts all of them, whatever its limit: they
    /// expire with the window. A token bucket owes at most its capacity for them, so that no client waits longer than the
    /// bucket takes to fill.
    pub(crate) fn spend(&mut self, now: Moment, cost: u64) {
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

    /// Gives back units that were spent under another version of the policy.
    pub(crate) fn give_back(&mut self, now: Moment, amount: u64) {
        let Some(quota) = self.quota() else { return };
        let view = self.view(&quota, now);
        if amount > 0 && Self::used(&view) > 0 {
            self.refund(&view, &quota, amount);
        }
    }

    /// The quota that the state was counted for, as far as the state knows it; none of a block.
    fn quota(&self) -> Option<Quota> {
        let limits = match self {
            Self::TokenBucket(counter) => (counter.limit, counter.capacity),
            _ => (0, 0),
        };
        Some(Quota::of_state(self.algorithm()?, self.window_ms(), limits))
    }

    /// Whether the two are counted for the same quota.
    pub(crate) fn is_alike(&self, other: &Self) -> bool {
        let bucket = |state: &Self| match state {
            Self::TokenBucket(counter) => Some((counter.limit, counter.capacity)),
            _ => None,
        };
        self.algorithm() == other.algorithm()
            && self.window_ms() == other.window_ms()
            && bucket(self) == bucket(other)
    }

    /// Whether the state counts something, however far ahead of the clock.
    pub(crate) fn is_counting(&self, now_ms: u64) -> bool {
        self.latest_and_until_ms().1 > now_ms
    }

    /// Whether it counts something that a changed quota could begin with.
    pub(crate) fn could_count(&self, quota: &Quota, now_ms: u64) -> bool {
        self.algorithm() == Some(quota.algorithm()) && self.is_counting(now_ms)
    }

    /// Whether it is kept beside the states of another version of its policy: while it counts something, and for a while
    /// after it was written. A block is kept apart.
    pub(crate) fn is_kept(&self, now_ms: u64, while_ms: impl FnOnce() -> u64) -> bool {
        let (latest_ms, until_ms) = self.latest_and_until_ms();
        let is_far_ahead = latest_ms.saturating_sub(now_ms) > self.window_ms();
        self.algorithm().is_some()
            && !is_far_ahead
            && (until_ms > now_ms || latest_ms.saturating_add(while_ms()) > now_ms)
    }

    /// The window under which it was counted; 0 of a block.
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

    /// The latest moment that it knows of: that of the last request, or the beginning of its window. A clock that shows an
    /// earlier one after this was read has stepped back.
    pub fn latest_ms(&self) -> u64 {
        self.latest_and_until_ms().0
    }

    /// The moment from which it counts nothing, under the quota that it was counted for; `None` if that is over. One that was
    /// counted more than a window ahead, before the clock stepped back, is taken for over: else it would be kept until that time comes.
    pub fn left_until_ms(&self, now_ms: u64) -> Option<u64> {
        let (latest_ms, until_ms) = self.latest_and_until_ms();
        let is_far_ahead = match self {
            Self::Block { until_ms } => until_ms.saturating_sub(now_ms) > MAX_WINDOW_MS,
            _ => latest_ms.saturating_sub(now_ms) > self.window_ms(),
        };
        (until_ms > now_ms && !is_far_ahead).then_some(until_ms)
    }

    fn latest_and_until_ms(&self) -> (u64, u64) {
        match self {
            Self::SlidingWindow(counter) => (counter.start_ms, counter.counts_until_ms()),
            Self::StrictWindow(counter) => counter.newest_and_until_ms(),
            Self::SlidingLog(counter) => counter.newest_and_until_ms(),
            Self::FixedWindow(counter) => (counter.start_ms, counter.counts_until_ms()),
            Self::TokenBucket(counter) => (counter.at_ms, counter.counts_until_ms()),
            Self::Block { until_ms } => (0, *until_ms),
        }
    }

    /// The memory that it holds besides itself, in as many allocations.
    pub fn heap_bytes(&self) -> [usize; 2] {
        match self {
            Self::StrictWindow(counter) => [counter.heap_bytes(), 0],
            Self::SlidingLog(counter) => [size_of::<SlidingLog>(), counter.heap_bytes()],
            Self::SlidingWindow(_) | Self::FixedWindow(_) | Self::TokenBucket(_) | Self::Block { .. } => {
                [0, 0]
            }
        }
    }

    /// By how much that may grow with the next that is counted.
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
                debug_assert!(false, "a block stands at no quota's place");
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

    fn parts(view: &StateView) -> Parts {
        match view {
            StateView::SlidingWindow(view) => SlidingWindow::parts(view),
            StateView::StrictWindow(view) => StrictWindow::parts(view),
            StateView::SlidingLog(view) => SlidingLog::parts(view),
            StateView::FixedWindow(view) => FixedWindow::parts(view),
            StateView::TokenBucket(view) => TokenBucket::parts(view),
        }
    }

    fn is_mended(view: &StateView) -> bool {
        match view {
            StateView::SlidingWindow(view) => SlidingWindow::is_mended(view),
            StateView::StrictWindow(view) => StrictWindow::is_mended(view),
            StateView::SlidingLog(view) => SlidingLog::is_mended(view),
            StateView::FixedWindow(view) => FixedWindow::is_mended(view),
            StateView::TokenBucket(view) => TokenBucket::is_mended(view),
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
