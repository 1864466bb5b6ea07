//! Layouts: encodings of counters in words.
//!
//! A word of the table is `layout (10) | generation (6) | payload (48)`. The layout identifies the quota that the
//! payload was written under, so any word can be decoded by itself: to rank its key for eviction, and to carry its
//! count over when a limit has changed.
//!
//! A *packed* payload holds window number, previous and current count. If these need more than 48 bits, or if windows
//! do not begin at multiples of their length, the layout is *wide*: the payload is the current count, and the rest,
//! which changes only when a window begins, is in the wide array.
//!
//! A token bucket is wide too, but all of its state is in the wide array and changes with every request. Its word only
//! identifies the quota, so it is decided under the page's lock.

use std::sync::Arc;

use slidegate_core::{
    Algorithm, Anchor, Counter, FixedWindow, NarrowBucket, Quota, SlidingWindow, State, TokenBucket,
};

use super::wide::WidePart;
use super::word::{PAYLOAD_BITS, PAYLOAD_MASK, RECORD, VACANT, Word};

/// Time within which a payload's window number must not overflow: two years, longer than a process runs.
const HORIZON_MS: u64 = 2 * 366 * 86_400_000;
/// Time by which the clock may step back behind the moment at which a quota was first used.
const MARGIN_MS: u64 = 86_400_000;

/// Forms of layouts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Form {
    Packed,
    Wide,
}

impl Form {
    /// Returns the forms that a counter of this quota may take, in order of preference.
    pub(super) fn of(quota: &Quota) -> &'static [Self] {
        if quota.algorithm() == Algorithm::TokenBucket { &[Self::Wide] } else { &[Self::Packed, Self::Wide] }
    }
}

/// Encoding of counters of one quota in words.
#[derive(Clone, Debug)]
pub(super) struct Layout {
    /// Number in the registry.
    pub(super) number: u16,
    quota: Quota,
    /// Quotas of the policy that the layout was made for; none unless they are a sliding window of which every count up
    /// to the limit fits. The reference keeps the address from being reused, so equal addresses mean equal quotas.
    sliding_quotas: Arc<[Quota]>,
    packing: Option<Packing>,
    /// Whether this is the preferred form of the quota that the quota fits.
    pub(super) is_first_choice: bool,
    /// Largest current count that fits.
    max_count: u64,
}

/// Payload of window number, previous count and current count, from the highest bits to the lowest. A fixed window has
/// no previous count.
#[derive(Clone, Debug)]
pub(super) struct Packing {
    base_ms: u64,
    unit_ms: u64,
    count_bits: u32,
    time_shift: u32,
    cur_mask: u64,
    /// Zero for a fixed window, whose window number follows the current count directly.
    prev_mask: u64,
}

impl Packing {
    /// Returns `None` if the numbers of this quota need more bits.
    fn new(quota: &Quota, now_ms: u64) -> Option<Self> {
        let counts = if quota.algorithm() == Algorithm::FixedWindow { 1 } else { 2 };
        // Only windows that start at the epoch are numbered; any other start needs its time.
        let unit_ms = if quota.anchor() == Anchor::Epoch { quota.window_ms() } else { 1 };
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

    /// Encodes counts. Returns `None` if the window began before `base_ms` or between two windows, or if a number is
    /// too large.
    fn pack(&self, counts: Counts) -> Option<u64> {
        let since_base_ms = counts.start_ms.checked_sub(self.base_ms)?;
        let time = since_base_ms / self.unit_ms;
        if since_base_ms != time * self.unit_ms || time >> (PAYLOAD_BITS - self.time_shift) != 0 {
            return None;
        }
        if (counts.prev | counts.cur) >> self.count_bits != 0 {
            return None;
        }
        // The previous count of a fixed window is 0, so the shift by `count_bits` does no harm.
        Some(time << self.time_shift | counts.prev << self.count_bits | counts.cur)
    }
}

/// Counts of a sliding or fixed window. Of a token bucket: the time of the debt and, as `prev`, the debt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) start_ms: u64,
    pub(super) prev: u64,
    pub(super) cur: u64,
}

impl WidePart {
    /// Adds the current count, which is in the word.
    #[inline(always)]
    pub(super) fn with(self, cur: u64) -> Counts {
        Counts { start_ms: self.start_ms, prev: self.prev, cur }
    }

    /// Returns all counts but the current one.
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

    /// Converts to a token bucket that was written under `quota`.
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

    /// Returns `None` if the debt exceeds 64 bits.
    #[inline(always)]
    pub(super) fn of_bucket(counter: &TokenBucket) -> Option<Self> {
        Some(Self { start_ms: counter.at_ms, prev: u64::try_from(counter.debt).ok()?, cur: 0 })
    }
}

impl Layout {
    /// Creates a layout for policies whose only quota is the first of these. Returns `None` if it does not fit the
    /// form.
    pub(super) fn new(quotas: &Arc<[Quota]>, form: Form, now_ms: u64) -> Option<Self> {
        let quota = *quotas.first()?;
        let is_first_choice = form == Form::Packed || Packing::new(&quota, now_ms).is_none();
        let packing = match (quota.algorithm(), form) {
            (Algorithm::SlidingWindow | Algorithm::FixedWindow, Form::Packed) => {
                Some(Packing::new(&quota, now_ms)?)
            }
            (Algorithm::SlidingWindow | Algorithm::FixedWindow, Form::Wide) => None,
            (Algorithm::TokenBucket, Form::Wide) if NarrowBucket::fits(&quota) => None,
            _ => return None,
        };
        let max_count = packing.as_ref().map_or(PAYLOAD_MASK, |packing| packing.cur_mask);
        let is_sliding = quota.algorithm() == Algorithm::SlidingWindow && quota.limit() <= max_count;
        let sliding_quotas = if is_sliding { quotas.clone() } else { Arc::new([]) };
        Some(Self { number: VACANT, quota, sliding_quotas, packing, is_first_choice, max_count })
    }

    pub(super) fn numbered(self, number: u16) -> Self {
        Self { number, ..self }
    }

    /// Creates a layout that no word is written in.
    pub(super) fn unused(quota: Quota) -> Self {
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

    /// Returns whether the layout was made for the policy that holds these very quotas, a sliding window of which every
    /// count up to the limit fits.
    #[inline(always)]
    pub(super) fn is_sliding_for(&self, quotas: &Arc<[Quota]>) -> bool {
        Arc::ptr_eq(&self.sliding_quotas, quotas)
    }

    #[inline(always)]
    pub(super) fn packing(&self) -> Option<&Packing> {
        self.packing.as_ref()
    }

    /// Returns whether the layout is that of a sliding window of which every count up to the limit fits.
    pub(super) fn is_sliding(&self) -> bool {
        !self.sliding_quotas.is_empty()
    }

    /// Returns whether `word` was written in this layout.
    #[inline(always)]
    pub(super) fn is_of(&self, word: Word) -> bool {
        word.layout() == self.number
    }

    /// Returns whether the layout is that of a token bucket with these quotas.
    #[inline(always)]
    pub(super) fn is_bucket_for(&self, quotas: &Arc<[Quota]>) -> bool {
        self.quota.algorithm() == Algorithm::TokenBucket && self.is_for(quotas)
    }

    /// Returns whether the layout is for policies of these quotas.
    pub(super) fn is_for(&self, quotas: &Arc<[Quota]>) -> bool {
        **quotas == [self.quota]
    }

    /// Decodes a word, with its wide part if the layout is wide.
    #[inline(always)]
    pub(super) fn read(&self, word: Word, wide: impl FnOnce() -> Option<WidePart>) -> Option<Counts> {
        match &self.packing {
            Some(packing) => Some(packing.unpack(word.payload())),
            None => Some(wide()?.with(word.payload())),
        }
    }

    /// Returns the word that replaces `word`. Returns `None` if a change affects more than the word.
    pub(super) fn next(&self, word: Word, before: Counts, after: Counts) -> Option<Word> {
        if before.start_ms == after.start_ms && before.prev == after.prev && after.cur <= self.max_count {
            return Some(Word(word.0 - before.cur + after.cur));
        }
        let payload = self.packing.as_ref()?.pack(after)?;
        Some(Word::new(self.number, word.generation(), payload))
    }

    /// Returns whether [`write`](Self::write) accepts `counts`.
    pub(super) fn fits(&self, counts: Counts) -> bool {
        match &self.packing {
            Some(packing) => packing.pack(counts).is_some(),
            None => counts.cur <= self.max_count,
        }
    }

    /// Encodes counts that fit, in a word and, if the layout is wide, its wide part.
    pub(super) fn write(&self, counts: Counts, generation: u64) -> (Word, Option<WidePart>) {
        debug_assert!(self.fits(counts));
        match &self.packing {
            Some(packing) => {
                (Word::new(self.number, generation, packing.pack(counts).unwrap_or_default()), None)
            }
            None => (Word::new(self.number, generation, counts.cur), Some(WidePart::of(counts))),
        }
    }

    /// Converts counts to a state.
    pub(super) fn state(&self, counts: Counts) -> State {
        match self.quota.algorithm() {
            Algorithm::FixedWindow => State::FixedWindow(counts.fixed(self.quota.window_ms())),
            Algorithm::TokenBucket => State::TokenBucket(counts.bucket(&self.quota)),
            _ => State::SlidingWindow(counts.sliding(self.quota.window_ms())),
        }
    }
}

/// Returns the counts of a state if a word under `quota` can hold them.
pub(super) fn counts_of(state: &State, quota: &Quota) -> Option<Counts> {
    let counts = match state {
        State::SlidingWindow(counter) => Counts::of_sliding(counter),
        State::FixedWindow(counter) => Counts::of_fixed(counter),
        State::TokenBucket(counter) => Counts::of_bucket(counter)?,
        State::StrictWindow(_) | State::SlidingLog(_) | State::Block { .. } => return None,
    };
    state.belongs_to(quota).then_some(counts)
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
    fn counts_that_do_not_fit_are_rejected_not_truncated() {
        let packing = packing("100/1m").unwrap();
        let pack = |start_ms, cur| packing.pack(Counts { start_ms, prev: 0, cur });
        assert!(pack(NOW, 127).is_some());
        assert!(pack(NOW, 128).is_none(), "count");
        assert!(pack(NOW + 1, 1).is_none(), "between two windows");
        assert!(pack(0, 1).is_none(), "before the base time");
        assert!(pack(NOW + (60_000 << 35), 1).is_none(), "beyond the last window number");
    }
}
