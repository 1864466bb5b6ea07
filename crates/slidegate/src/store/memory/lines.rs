//! Flat memory in cache lines. Zeroed by the operating system, which hands it out as it is touched.

use super::atomics::{AtomicU64, zeroed};

pub(super) const WORDS_PER_LINE: usize = 8;

pub(super) struct Lines {
    words: Box<[AtomicU64]>,
    /// Words to skip so that each line is a cache line. A number as small as this and one of 32 bits cannot overflow
    /// where they are added, and then nothing has to check it.
    skip: u8,
}

impl Lines {
    pub(super) fn new(count: usize) -> Self {
        let words: Box<[AtomicU64]> = zeroed((count + 1) * WORDS_PER_LINE);
        // A model has no cache, and has to be the same each time.
        let misaligned = if cfg!(slidegate_loom) { 0 } else { words.as_ptr().addr() % 64 };
        let skip = if misaligned == 0 { 0 } else { (64 - misaligned) / size_of::<AtomicU64>() };
        Self { words, skip: skip as u8 }
    }

    /// As many, such that a line of these has the same number there. The operating system places large memory of the
    /// same size alike, so that those are cache lines too; where it does not, they are only slower.
    pub(super) fn alike(&self) -> Self {
        Self { words: zeroed(self.words.len()), skip: self.skip }
    }

    /// The number of a line's first word.
    #[inline(always)]
    pub(super) fn first_word(&self, line: u32) -> usize {
        usize::from(self.skip) + line as usize * WORDS_PER_LINE
    }

    #[inline(always)]
    pub(super) fn get(&self, line: u32) -> Option<&[AtomicU64; WORDS_PER_LINE]> {
        // By its end: that is what has to be compared, and then the beginning need not be kept beside it.
        self.words.get(..self.first_word(line) + WORDS_PER_LINE)?.last_chunk()
    }

    /// Two words from a number on.
    #[inline(always)]
    pub(super) fn pair(&self, number: usize) -> Option<&[AtomicU64; 2]> {
        self.words.get(..number + 2)?.last_chunk()
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
