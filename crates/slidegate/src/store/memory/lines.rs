//! Flat memory in cache lines. Zeroed by the operating system, which hands it out as it is touched.

use super::atomics::{AtomicU64, zeroed};

pub(super) const WORDS_PER_LINE: usize = 8;

const PAIRS_PER_LINE: usize = WORDS_PER_LINE / 2;

pub(super) struct Lines {
    pairs: Box<[[AtomicU64; 2]]>,
    /// Pairs to skip so that each line is a cache line. A number as small as this and one of 32 bits cannot overflow
    /// where they are added, and then nothing has to check it.
    skip: u8,
}

impl Lines {
    pub(super) fn new(count: usize) -> Self {
        let pairs: Box<[[AtomicU64; 2]]> = zeroed(count * PAIRS_PER_LINE + PAIRS_PER_LINE);
        // A model has no cache, and has to be the same each time.
        let misaligned = if cfg!(slidegate_loom) { 0 } else { pairs.as_ptr().addr() % 64 };
        let skip = if misaligned == 0 { 0 } else { (64 - misaligned) / size_of::<[AtomicU64; 2]>() };
        Self { pairs, skip: skip as u8 }
    }

    #[inline(always)]
    pub(super) fn get(&self, line: u32) -> Option<&[AtomicU64; WORDS_PER_LINE]> {
        let first = usize::from(self.skip) + line as usize * PAIRS_PER_LINE;
        self.pairs.get(first..first + PAIRS_PER_LINE)?.as_flattened().first_chunk()
    }

    /// One of the pairs of words that lines are made of.
    #[inline(always)]
    pub(super) fn pair(&self, number: u32) -> Option<&[AtomicU64; 2]> {
        self.pairs.get(usize::from(self.skip) + number as usize)
    }
}

/// A model has no cache, and the less it does the sooner it is done.
#[cfg(not(slidegate_loom))]
impl Lines {
    /// Begins to bring a line into the cache.
    #[inline(always)]
    pub(super) fn touch(&self, line: u32) {
        let first = self.get(line).map(|words| words[0].load(std::sync::atomic::Ordering::Relaxed));
        std::hint::black_box(first);
    }
}

#[cfg(slidegate_loom)]
impl Lines {
    pub(super) fn touch(&self, _line: u32) {}
}
