//! How a counter fits into a word.
//!
//! A word in the table is `layout (10) | generation (6) | payload (48)`. The layout's number says under which
//! quota the payload was written, so that any word can be read by itself: to see whether it is over when its
//! place is wanted, and to carry it over when a limit has changed.
//!
//! A *packed* payload holds window number, previous and current count. Where these need more than 48 bits, or
//! windows do not begin at whole multiples, the layout is *wide*: the payload is the current count, and the
//! rest, which changes only from one window to the next, stands beside the table.
//!
//! A token bucket is wide too, but all of it stands there, and changes with every request. Its word says no more than
//! that, so only who holds the page's lock decides by it.

use std::sync::Arc;

use slidegate_core::{
    Algorithm, Anchor, Counter, FixedWindow, NarrowBucket, Quota, SlidingWindow, State, TokenBucket,
};

use super::wide::Wide;
use super::word::{PAYLOAD_BITS, PAYLOAD_MASK, RECORD, VACANT, Word};

/// A payload's window number must not overflow while a process runs, say for two years.
const HORIZON_MS: u64 = 2 * 366 * 86_400_000;
/// Clocks may step back a little behind the moment at which a quota was first seen.
const MARGIN_MS: u64 = 86_400_000;

/// The two kinds of layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Form {
    Packed,
    Wide,
}

impl Form {
    /// Those in which a counter of this quota may be kept, in the order in which they are tried.
    pub(super) fn of(quota: &Quota) -> &'static [Self] {
        if quota.algorithm() == Algorithm::TokenBucket { &[Self::Wide] } else { &[Self::Packed, Self::Wide] }
    }
}

/// How counters of one quota are written into words.
#[derive(Clone, Debug)]
pub(super) struct Layout {
    /// Its place in the list; given when it is added.
    pub(super) number: u16,
    quota: Quota,
    /// The quotas of the policy that it was made for, none if they are not a sliding window or if not every count up to
    /// the limit fits. Holding them keeps their address from being used again, so that whoever has the same address has
    /// the same quotas.
    sliding_quotas: Arc<[Quota]>,
    packing: Option<Packing>,
    /// Whether counters of this quota are kept in another form only if they do not fit this one.
    pub(super) is_first_choice: bool,
    /// The largest current count that fits.
    max_count: u64,
}

/// Window number, previous count, current count, from the highest bits to the lowest. A fixed window's previous
/// count is left out.
#[derive(Clone, Debug)]
pub(super) struct Packing {
    base_ms: u64,
    unit_ms: u64,
    count_bits: u32,
    time_shift: u32,
    cur_mask: u64,
    /// Nothing in a fixed window, where the time follows at once.
    prev_mask: u64,
}

impl Packing {
    /// `None` if the numbers of this quota need more room.
    fn new(quota: &Quota, now_ms: u64) -> Option<Self> {
        let counts = if quota.algorithm() == Algorithm::FixedWindow { 1 } else { 2 };
        let unit_ms = match quota.anchor() {
            Anchor::Epoch => quota.window_ms(),
            Anchor::FirstRequest => 1,
        };
        let count_bits = 64 - quota.limit().leading_zeros();
        let time_shift = counts * count_bits;
        let time_bits = PAYLOAD_BITS.checked_sub(time_shift)?;
        let base_ms = now_ms.saturating_sub(MARGIN_MS) / unit_ms * unit_ms;
        let is_wide_enough = u128::from(unit_ms) << time_bits > u128::from(HORIZON_MS + MARGIN_MS);
        let cur_mask = (1 << count_bits) - 1;
        let prev_mask = if counts == 1 { 0 } else { cur_mask };
        is_wide_enough.then_some(Self { base_ms, unit_ms, count_bits, time_shift, cur_mask, prev_mask })
    }

    #[inline(always)]
    pub(super) fn unpack(&self, payload: u64) -> Counts {
        Counts {
            start_ms: self.base_ms + (payload >> self.time_shift) * self.unit_ms,
            prev: (payload >> self.count_bits) & self.prev_mask,
            cur: payload & self.cur_mask,
        }
    }

    /// `None` if the window began before the packing's time or between two of its windows, or if a number is too
    /// large.
    fn pack(&self, counts: Counts) -> Option<u64> {
        let since_base_ms = counts.start_ms.checked_sub(self.base_ms)?;
        let time = since_base_ms / self.unit_ms;
        if since_base_ms != time * self.unit_ms || time >> (PAYLOAD_BITS - self.time_shift) != 0 {
            return None;
        }
        if (counts.prev | counts.cur) >> self.count_bits != 0 {
            return None;
        }
        // A fixed window has no previous count, and then nothing is shifted in.
        Some(time << self.time_shift | counts.prev << self.count_bits | counts.cur)
    }
}

/// What sliding and fixed windows have in common. Of a token bucket, when what was owed and, for `prev`, how much.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) start_ms: u64,
    pub(super) prev: u64,
    pub(super) cur: u64,
}

impl Wide {
    /// All counts, with the current one that is in the word.
    #[inline(always)]
    pub(super) fn with(self, cur: u64) -> Counts {
        Counts { start_ms: self.start_ms, prev: self.prev, cur }
    }

    /// All counts but the current one.
    #[inline(always)]
    pub(super) fn of(counts: Counts) -> Self {
        Self { start_ms: counts.start_ms, prev: counts.prev }
    }
}

impl Counts {
    #[inline(always)]
    pub(super) fn sliding(self, window_ms: u64) -> SlidingWindow {
        SlidingWindow { start_ms: self.start_ms, window_ms, prev: self.prev, cur: self.cur }
    }

    #[inline(always)]
    pub(super) fn fixed(self, window_ms: u64) -> FixedWindow {
        FixedWindow { start_ms: self.start_ms, window_ms, cur: self.cur }
    }

    /// Written under `quota`.
    #[inline(always)]
    pub(super) fn bucket(self, quota: &Quota) -> TokenBucket {
        TokenBucket { debt: u128::from(self.prev), at_ms: self.start_ms, ..TokenBucket::empty(quota) }
    }

    #[inline(always)]
    pub(super) fn of_sliding(counter: &SlidingWindow) -> Self {
        Self { start_ms: counter.start_ms, prev: counter.prev, cur: counter.cur }
    }

    #[inline(always)]
    pub(super) fn of_fixed(counter: &FixedWindow) -> Self {
        Self { start_ms: counter.start_ms, prev: 0, cur: counter.cur }
    }

    /// `None` if it owes too much.
    #[inline(always)]
    pub(super) fn of_bucket(counter: &TokenBucket) -> Option<Self> {
        Some(Self { start_ms: counter.at_ms, prev: u64::try_from(counter.debt).ok()?, cur: 0 })
    }
}

impl Layout {
    /// For policies of the first of these quotas, which is their only one; `None` if it does not fit the form.
    pub(super) fn new(quotas: &Arc<[Quota]>, form: Form, now_ms: u64) -> Option<Self> {
        let quota = *quotas.first()?;
        let is_first_choice = form == Form::Packed || Packing::new(&quota, now_ms).is_none();
        let packing = match (quota.algorithm(), form) {
            (Algorithm::SlidingWindow | Algorithm::FixedWindow, Form::Packed) => {
                Some(Packing::new(&quota, now_ms)?)
            }
            (Algorithm::SlidingWindow | Algorithm::FixedWindow, Form::Wide) => None,
            (Algorithm::TokenBucket, Form::Wide) if NarrowBucket::fits(&quota) => None,
            (Algorithm::TokenBucket | Algorithm::StrictWindow | Algorithm::SlidingLog, _) => return None,
        };
        let max_count = packing.as_ref().map_or(PAYLOAD_MASK, |packing| packing.cur_mask);
        let is_sliding = quota.algorithm() == Algorithm::SlidingWindow && quota.limit() <= max_count;
        let sliding_quotas = if is_sliding { quotas.clone() } else { Arc::new([]) };
        Some(Self { number: VACANT, quota, sliding_quotas, packing, is_first_choice, max_count })
    }

    pub(super) fn numbered(self, number: u16) -> Self {
        Self { number, ..self }
    }

    /// One in which no word is written.
    pub(super) fn of_no_word(quota: Quota) -> Self {
        let number = RECORD + 1;
        Self {
            number,
            quota,
            sliding_quotas: Arc::new([]),
            packing: None,
            is_first_choice: false,
            max_count: 0,
        }
    }

    #[inline(always)]
    pub(super) fn quota(&self) -> &Quota {
        &self.quota
    }

    /// Whether it was made for the policy that has these very quotas, and counts in a sliding window any number up to the
    /// limit.
    #[inline(always)]
    pub(super) fn is_sliding_for(&self, quotas: &Arc<[Quota]>) -> bool {
        Arc::ptr_eq(&self.sliding_quotas, quotas)
    }

    #[inline(always)]
    pub(super) fn packing(&self) -> Option<&Packing> {
        self.packing.as_ref()
    }

    /// Whether it counts in a sliding window any number up to the limit.
    pub(super) fn is_sliding(&self) -> bool {
        !self.sliding_quotas.is_empty()
    }

    /// Whether `word` was written in it.
    #[inline(always)]
    pub(super) fn is_of(&self, word: Word) -> bool {
        word.layout() == self.number
    }

    /// Whether it is one for a token bucket of a policy of these quotas.
    #[inline(always)]
    pub(super) fn is_bucket_for(&self, quotas: &Arc<[Quota]>) -> bool {
        self.quota.algorithm() == Algorithm::TokenBucket && self.is_for(quotas)
    }

    /// Whether it is a layout for a policy of these quotas.
    pub(super) fn is_for(&self, quotas: &Arc<[Quota]>) -> bool {
        **quotas == [self.quota]
    }

    /// What is counted in `word`, and beside it if the layout is wide.
    #[inline(always)]
    pub(super) fn read(&self, word: Word, wide: impl FnOnce() -> Option<Wide>) -> Option<Counts> {
        match &self.packing {
            Some(packing) => Some(packing.unpack(word.payload())),
            None => Some(wide()?.with(word.payload())),
        }
    }

    /// The word to take the place of `word`; `None` if not everything that has changed fits into it.
    pub(super) fn next(&self, word: Word, before: Counts, after: Counts) -> Option<Word> {
        if before.start_ms == after.start_ms && before.prev == after.prev && after.cur <= self.max_count {
            return Some(Word(word.0 - before.cur + after.cur));
        }
        let payload = self.packing.as_ref()?.pack(after)?;
        Some(Word::new(self.number, word.generation(), payload))
    }

    /// Whether [`write`](Self::write) can be called with `counts`.
    pub(super) fn fits(&self, counts: Counts) -> bool {
        match &self.packing {
            Some(packing) => packing.pack(counts).is_some(),
            None => counts.cur <= self.max_count,
        }
    }

    /// The word for `counts`, which fit, and what stands beside it if the layout is wide.
    pub(super) fn write(&self, counts: Counts, generation: u64) -> (Word, Option<Wide>) {
        debug_assert!(self.fits(counts));
        match &self.packing {
            Some(packing) => {
                (Word::new(self.number, generation, packing.pack(counts).unwrap_or_default()), None)
            }
            None => (Word::new(self.number, generation, counts.cur), Some(Wide::of(counts))),
        }
    }

    /// The counter for `counts`.
    pub(super) fn state(&self, counts: Counts) -> State {
        match self.quota.algorithm() {
            Algorithm::FixedWindow => State::FixedWindow(counts.fixed(self.quota.window_ms())),
            Algorithm::TokenBucket => State::TokenBucket(counts.bucket(&self.quota)),
            _ => State::SlidingWindow(counts.sliding(self.quota.window_ms())),
        }
    }
}

/// The counts of a state that may be written into a word under `quota`.
pub(super) fn counts_of(state: &State, quota: &Quota) -> Option<Counts> {
    let counts = match state {
        State::SlidingWindow(counter) => Counts::of_sliding(counter),
        State::FixedWindow(counter) => Counts::of_fixed(counter),
        State::TokenBucket(counter) => Counts::of_bucket(counter)?,
        State::StrictWindow(_) | State::SlidingLog(_) | State::Block { .. } => return None,
    };
    state.is_of(quota).then_some(counts)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_800_000_000_000;

    fn packing(quota: &str) -> Option<Packing> {
        Packing::new(&quota.parse().unwrap(), NOW)
    }

    #[test]
    fn usual_quotas_are_packed_and_large_ones_are_not() {
        for quota in
            ["100/1m", "1000/1m", "1000/1s", "4000/1m", "1/1ms", "10000/1h", "5000000/1h fixed-window"]
        {
            assert!(packing(quota).is_some(), "{quota}");
        }
        for quota in ["10000/1s", "10000000/30d", "5000/1s anchor=first-request"] {
            assert!(packing(quota).is_none(), "{quota}");
        }
    }

    #[test]
    fn every_field_survives_packing() {
        let packing = packing("100/1m").unwrap();
        for (start_ms, prev, cur) in [(NOW, 0, 0), (NOW + 60_000, 100, 100), (NOW + HORIZON_MS, 1, 127)] {
            let counts = Counts { start_ms, prev, cur };
            let payload = packing.pack(counts).unwrap();
            assert_eq!(packing.unpack(payload), counts);
            let word = Word::new(RECORD, 63, payload);
            assert_eq!((word.layout(), word.generation(), word.payload()), (RECORD, 63, payload));
        }
    }

    #[test]
    fn what_does_not_fit_is_refused_not_cut() {
        let packing = packing("100/1m").unwrap();
        let pack = |start_ms, cur| packing.pack(Counts { start_ms, prev: 0, cur });
        assert!(pack(NOW, 127).is_some());
        assert!(pack(NOW, 128).is_none(), "count");
        assert!(pack(NOW + 1, 1).is_none(), "between two windows");
        assert!(pack(0, 1).is_none(), "before its time");
        assert!(pack(NOW + (60_000 << 35), 1).is_none(), "beyond its time");
    }
}
