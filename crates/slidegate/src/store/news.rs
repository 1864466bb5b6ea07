//! Word of what others have given back.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::clock::{Clock, SystemClock};

/// Word that is older than this is none: what was given back counts everywhere within a second, and a tenth is for the way.
const FRESH_MS: u64 = 900;

/// For so long after a mark was taken it may be of use: no denial is remembered longer.
#[cfg(any(feature = "redis", feature = "postgres"))]
pub(crate) const MARK_LIFE_MS: u64 = 10_000;

/// What a store has heard of refunds, resets and changed limits, by whomever.
///
/// A store that hears of them keeps one: it [`tell`](Self::tell)s which part of the keys was concerned, and
/// [`confirm`](Self::confirm)s that it has heard everything up to some moment. Who remembers an answer of the store takes
/// a [`Mark`] before it asks. Word about a key is word about all of its part.
pub struct News {
    told: Box<[AtomicU64]>,
    /// How often something may have been missed.
    gaps: AtomicU64,
    /// Everything before has been told. Zero: nothing is known.
    confirmed_ms: AtomicU64,
    clock: Arc<dyn Clock>,
}

impl News {
    /// Of keys in so many parts, at least one.
    pub fn new(parts: u16) -> Self {
        Self::by(SystemClock::default(), parts)
    }

    /// The same by a clock of one's own.
    pub fn by(clock: impl Clock, parts: u16) -> Self {
        Self {
            told: (0..parts.max(1)).map(|_| AtomicU64::new(0)).collect(),
            gaps: AtomicU64::new(0),
            confirmed_ms: AtomicU64::new(0),
            clock: Arc::new(clock),
        }
    }

    /// The time, to confirm by.
    pub fn now_ms(&self) -> u64 {
        self.clock.now_ms()
    }

    /// Something was given back to a key of this part.
    pub fn tell(&self, part: u16) {
        self.told_of(part).fetch_add(1, Ordering::AcqRel);
    }

    /// Something may have been given back to anybody: for a while nothing was heard. No mark that was taken before holds
    /// any more; but it is not known to be over.
    pub fn tell_gap(&self) {
        self.gaps.fetch_add(1, Ordering::AcqRel);
    }

    /// All that was given back before `until_ms` has been told.
    pub fn confirm(&self, until_ms: u64) {
        self.confirmed_ms.fetch_max(until_ms, Ordering::AcqRel);
    }

    /// What is known now about a part of the keys.
    pub fn mark(self: &Arc<Self>, part: u16) -> Mark {
        let gaps = self.gaps.load(Ordering::Acquire);
        let told = self.told_of(part).load(Ordering::Acquire);
        Mark { news: Arc::clone(self), part, told, gaps }
    }

    /// Parts beyond the last begin again with the first.
    fn told_of(&self, part: u16) -> &AtomicU64 {
        &self.told[usize::from(part) % self.told.len()]
    }
}

impl fmt::Debug for News {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("News").field("confirmed_ms", &self.confirmed_ms).finish_non_exhaustive()
    }
}

/// What was known about a part of the keys when it was made.
#[derive(Clone, Debug)]
pub struct Mark {
    news: Arc<News>,
    part: u16,
    told: u64,
    gaps: u64,
}

impl Mark {
    /// Whether something was given back since, perhaps to another key of the same part.
    pub fn is_over(&self) -> bool {
        self.news.told_of(self.part).load(Ordering::Acquire) != self.told
    }

    /// Whether nothing was given back since, but for what happened within the last second.
    pub fn holds(&self) -> bool {
        // In this order: what is told before something is confirmed has then been seen.
        let confirmed_ms = self.news.confirmed_ms.load(Ordering::Acquire);
        self.news.clock.now_ms().saturating_sub(confirmed_ms) <= FRESH_MS
            && self.news.gaps.load(Ordering::Acquire) == self.gaps
            && !self.is_over()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::ManualClock;

    #[test]
    fn a_mark_holds_while_its_part_is_quiet_and_that_is_confirmed() {
        let clock = ManualClock::at(1_000_000);
        let news = Arc::new(News::by(clock.clone(), 16));
        let mark = news.mark(7);
        assert!(!mark.holds() && !mark.is_over(), "nobody has confirmed anything");
        news.confirm(news.now_ms());
        clock.advance(FRESH_MS);
        assert!(mark.holds());
        clock.advance(1);
        assert!(!mark.holds() && !mark.is_over(), "too long ago");
        news.confirm(news.now_ms());
        assert!(mark.holds(), "and known to have been quiet all the while");
        news.tell(8);
        assert!(mark.holds(), "somebody else's");
        news.tell(7);
        assert!(!mark.holds() && mark.is_over());
        let other = news.mark(7);
        assert!(other.holds());
        news.tell_gap();
        assert!(!other.holds() && !other.is_over(), "nobody knows");
        assert!(news.mark(7).holds());
    }

    #[test]
    fn a_late_confirmation_of_an_earlier_time_takes_nothing_back() {
        let clock = ManualClock::at(1_000_000);
        let news = Arc::new(News::by(clock.clone(), 16));
        news.confirm(1_000_000);
        news.confirm(900_000);
        assert!(news.mark(0).holds());
    }
}
