//! The slots of the table: four in a line, 64 lines in a page.

use std::sync::atomic::Ordering;

use super::atomics::{AtomicU64, fence};
use super::cache_lines::{CacheLines, WORDS_PER_LINE};
use super::hash::{EMPTY, KeyHash, REMOVED};
use super::word::{VACANT, Word};

const SLOTS_PER_LINE: usize = WORDS_PER_LINE / 2;
/// A model gets by with one line; more would take it too long.
const LINES_PER_PAGE: usize = if cfg!(slidegate_loom) { 1 } else { 64 };
pub(super) const SLOTS_PER_PAGE: usize = SLOTS_PER_LINE * LINES_PER_PAGE;
pub(super) const SLOT_BYTES: usize = 16;

/// Position and identity of a key in the table: its home line, where a lookup begins, and its tag.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct KeyId {
    pub(super) tag: u64,
    pub(super) home_line: u32,
}

impl KeyId {
    /// Returns the page of the key.
    pub(super) fn page(self) -> usize {
        self.home_line as usize / LINES_PER_PAGE
    }
}

/// A slot: the tag identifies its owner, the word holds the count.
///
/// The owner changes only under the page's lock. The count changes by compare-and-swap, without the lock.
#[derive(Clone, Copy)]
pub(super) struct Slot<'a> {
    pub(super) tag: &'a AtomicU64,
    word: &'a AtomicU64,
    /// Number of the slot, unique in the table. It is also the index into the wide array.
    pub(super) number: usize,
}

impl<'a> Slot<'a> {
    #[inline(always)]
    fn at(words: &'a [AtomicU64; WORDS_PER_LINE], first: usize, place: usize) -> Self {
        let (tags, words) = words.split_at(SLOTS_PER_LINE);
        Self { tag: &tags[place], word: &words[place], number: first + 2 * place }
    }

    #[inline(always)]
    pub(super) fn load(&self) -> Word {
        Word(self.word.load(Ordering::Acquire))
    }

    /// Returns whether `tag` owned the slot when its word was last loaded. The former owner's tag is removed before the
    /// new owner's word is stored, so a thread that sees that word no longer sees the former tag.
    #[inline(always)]
    pub(super) fn is_owned_by(&self, tag: u64) -> bool {
        self.tag.load(Ordering::Acquire) == tag
    }

    /// Returns whether the slot has an owner. Requires the page's lock.
    pub(super) fn is_owned(&self) -> bool {
        self.tag.load(Ordering::Relaxed) > REMOVED
    }

    #[inline(always)]
    pub(super) fn replace(&self, before: Word, after: Word) -> bool {
        self.word.compare_exchange(before.0, after.0, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Returns whether the word is still `word`, so that everything read since it was loaded is consistent with it.
    #[inline(always)]
    pub(super) fn is_unchanged(&self, word: Word) -> bool {
        fence(Ordering::Acquire);
        self.word.load(Ordering::Relaxed) == word.0
    }

    /// Makes the word vacant, which sends all other threads to the page's lock. Returns `false` if it is no longer
    /// `word`. Requires that lock. The wide part may be written until [`put`](Self::put).
    pub(super) fn seize(&self, word: Word) -> bool {
        self.replace(word, Word::new(VACANT, word.generation() + 1, 0))
    }

    /// Stores a word into a slot whose word was seized. Requires the page's lock.
    pub(super) fn put(&self, word: Word) {
        debug_assert_eq!(self.load().layout(), VACANT);
        debug_assert!(self.is_owned(), "a word without an owner");
        self.word.store(word.0, Ordering::Release);
    }

    /// Removes the owner of the slot. Returns `false` if the word is no longer `word`. Requires the page's lock.
    pub(super) fn vacate(&self, word: Word) -> bool {
        let is_seized = self.seize(word);
        if is_seized {
            self.tag.store(REMOVED, Ordering::Release);
        }
        is_seized
    }

    /// Gives a vacant slot to `tag`. Requires the page's lock.
    pub(super) fn occupy(&self, tag: u64, word: Word) {
        self.tag.store(tag, Ordering::Release);
        self.put(word);
    }
}

/// All slots of the table.
pub(super) struct Slots {
    lines: CacheLines,
    count: u32,
}

impl Slots {
    pub(super) fn new(pages: usize) -> Self {
        let count = pages * LINES_PER_PAGE;
        Self { lines: CacheLines::new(count), count: u32::try_from(count).unwrap_or(u32::MAX) }
    }

    /// Creates an array of as many lines with the same numbers.
    pub(super) fn new_parallel_lines(&self) -> CacheLines {
        self.lines.new_parallel()
    }

    /// Returns the position and identity of a key with this hash.
    #[inline(always)]
    pub(super) fn id(&self, hash: KeyHash) -> KeyId {
        // The upper half of the product is evenly distributed over any number of lines.
        let home_line = (u128::from(hash.place) * u128::from(self.count)) >> 64;
        KeyId { tag: hash.tag, home_line: home_line as u32 }
    }

    /// Returns the words of a line: the tags first, then the counts.
    #[inline(always)]
    fn line_words(&self, line: u32) -> Option<&[AtomicU64; WORDS_PER_LINE]> {
        self.lines.get(line)
    }

    /// Returns the slots of a line.
    #[inline]
    fn line(&self, line: u32) -> impl Iterator<Item = Slot<'_>> {
        let words = self.line_words(line).into_iter();
        let first = self.lines.first_word(line);
        words.flat_map(move |words| (0..SLOTS_PER_LINE).map(move |place| Slot::at(words, first, place)))
    }

    /// Returns the slots of a line of a page. Line numbers wrap around at the end of the page.
    pub(super) fn line_of_page(&self, page: usize, line: usize) -> impl Iterator<Item = Slot<'_>> {
        self.line((page * LINES_PER_PAGE + line % LINES_PER_PAGE) as u32)
    }

    /// Returns all slots of a key's page, beginning with its home line, around the end of the page.
    pub(super) fn by_distance(&self, id: KeyId) -> impl Iterator<Item = Slot<'_>> {
        Self::lines_by_distance(id).flat_map(move |line| self.line(line))
    }

    /// Returns all slots of a page.
    pub(super) fn whole_page(&self, page: usize) -> impl Iterator<Item = Slot<'_>> {
        (0..LINES_PER_PAGE).flat_map(move |line| self.line_of_page(page, line))
    }

    /// Returns the slot of a key if it is in the key's home line, as most are; else any slot of that line. The caller
    /// verifies the owner after it has loaded the word.
    #[inline(always)]
    pub(super) fn likely_slot(&self, id: KeyId) -> Option<Slot<'_>> {
        let words = self.line_words(id.home_line)?;
        // Branch-free: the position is unpredictable, and a mispredicted branch would stall until the line has arrived
        // instead of letting the processor start on the next key.
        let mut likely = 0;
        for (place, tag) in words[..SLOTS_PER_LINE].iter().enumerate().skip(1) {
            likely = if tag.load(Ordering::Relaxed) == id.tag { place } else { likely };
        }
        Some(Slot::at(words, self.lines.first_word(id.home_line), likely))
    }

    /// Returns whether the slot is in the key's home line.
    pub(super) fn is_in_home_line(&self, slot: Slot<'_>, id: KeyId) -> bool {
        slot.number.wrapping_sub(self.lines.first_word(id.home_line)) < WORDS_PER_LINE
    }

    /// Returns the slot of a key, like [`find`](Self::find), with a fast path for its home line. Requires the page's
    /// lock.
    #[inline(always)]
    pub(super) fn find_home_first(&self, id: KeyId) -> Option<Slot<'_>> {
        let in_home_line = self.likely_slot(id).filter(|slot| slot.is_owned_by(id.tag));
        in_home_line.or_else(|| self.find(id))
    }

    /// Returns the slot of a key. A slot that was never used ends the search, because a key takes the nearest free slot
    /// and a used slot is never marked unused again.
    pub(super) fn find(&self, id: KeyId) -> Option<Slot<'_>> {
        for line in Self::lines_by_distance(id) {
            let words = self.line_words(line)?;
            let tags = [0, 1, 2, 3].map(|place: usize| words[place].load(Ordering::Acquire));
            if let Some(place) = tags.iter().position(|tag| *tag == id.tag) {
                return Some(Slot::at(words, self.lines.first_word(line), place));
            }
            if tags.contains(&EMPTY) {
                return None;
            }
        }
        None
    }

    /// Prefetches a key's home line.
    #[inline]
    pub(super) fn prefetch(&self, id: KeyId) {
        self.lines.prefetch(id.home_line);
    }

    /// Returns the lines of a key's page, beginning with its home line, around the end of the page.
    #[inline]
    fn lines_by_distance(id: KeyId) -> impl Iterator<Item = u32> {
        const LINES: u32 = LINES_PER_PAGE as u32;
        let first_of_page = id.home_line / LINES * LINES;
        (id.home_line..id.home_line + LINES).map(move |line| first_of_page + line % LINES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Replays what a slow thread sees when its slot is given to another key in between.
    #[test]
    fn a_former_owner_can_neither_write_nor_read_the_new_owners_word() {
        let slots = Slots::new(1);
        let slot = slots.line(0).next().unwrap();
        let counted = |generation| Word::new(5, generation, 7);
        slot.occupy(100, counted(0));
        let read_before = slot.load();
        assert!(slot.is_owned_by(100) && slot.is_unchanged(read_before));

        assert!(slot.vacate(read_before) && !slot.vacate(read_before));
        assert!(!slot.is_owned() && !slot.is_unchanged(read_before));
        let generation = slot.load().generation();
        slot.occupy(200, counted(generation));

        assert_eq!(slot.load().payload(), read_before.payload(), "the counts are equal");
        assert!(!slot.replace(read_before, counted(0)), "but a swap of the old word fails");
        assert!(!slot.is_unchanged(read_before));
        assert!(!slot.is_owned_by(100), "and the new word is not read as that of the former owner");
    }

    #[test]
    fn a_seized_word_is_vacant_until_another_is_put() {
        let slots = Slots::new(1);
        let slot = slots.line(63).last().unwrap();
        slot.occupy(100, Word::new(5, 0, 7));
        let word = slot.load();
        assert!(slot.seize(word));
        assert_eq!(slot.load().layout(), VACANT);
        assert!(!slot.seize(word), "a word can be seized only once");
        assert!(!slot.replace(word, word));
        slot.put(Word::new(5, slot.load().generation(), 8));
        assert_eq!(slot.load().payload(), 8);
    }
}
