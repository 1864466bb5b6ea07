//! Flat memory in cache lines, zeroed and lazily provided by the operating system.

use super::atomics::{AtomicU64, zeroed};

pub(super) const WORDS_PER_LINE: usize = 8;

pub(super) struct CacheLines {
    words: Box<[AtomicU64]>,
    /// Words before the first line, which is aligned to a cache line. As a `u8` added to a 32-bit line number it cannot
    /// overflow, so the addition needs no check.
    skip: u8,
}

impl CacheLines {
    pub(super) fn new(count: usize) -> Self {
        let words: Box<[AtomicU64]> = zeroed((count + 1) * WORDS_PER_LINE);
        // A model has no cache, and all of its runs must be the same.
        let misaligned = if cfg!(slidegate_loom) { 0 } else { words.as_ptr().addr() % 64 };
        let skip = if misaligned == 0 { 0 } else { (64 - misaligned) / size_of::<AtomicU64>() };
        Self { words, skip: skip as u8 }
    }

    /// Creates an array of the same size in which each word has the same number. Operating systems align large allocations
    /// of one size alike, so its lines are cache lines too; where they are not, access is only slower.
    pub(super) fn new_parallel(&self) -> Self {
        Self { words: zeroed(self.words.len()), skip: self.skip }
    }

    /// Returns the number of a line's first word.
    #[inline(always)]
    pub(super) fn first_word(&self, line: u32) -> usize {
        usize::from(self.skip) + line as usize * WORDS_PER_LINE
    }

    #[inline(always)]
    pub(super) fn get(&self, line: u32) -> Option<&[AtomicU64; WORDS_PER_LINE]> {
        // Sliced by its end, which the bounds check needs anyway: the beginning then needs no register.
        self.words.get(..self.first_word(line) + WORDS_PER_LINE)?.last_chunk()
    }

    /// Returns two adjacent words, the first of which has this number.
    #[inline(always)]
    pub(super) fn pair(&self, number: usize) -> Option<&[AtomicU64; 2]> {
        self.words.get(..number + 2)?.last_chunk()
    }
}

#[cfg(not(slidegate_loom))]
impl CacheLines {
    /// Prefetches a line.
    #[inline(always)]
    pub(super) fn prefetch(&self, line: u32) {
        let first = self.get(line).map(|words| words[0].load(std::sync::atomic::Ordering::Relaxed));
        std::hint::black_box(first);
    }
}

/// Does nothing in a model: it has no cache, and each step costs time.
#[cfg(slidegate_loom)]
impl CacheLines {
    pub(super) fn prefetch(&self, _line: u32) {}
}
