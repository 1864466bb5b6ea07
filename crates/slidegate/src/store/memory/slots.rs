//! The flat memory of the table: lines of four slots, sixty-four lines to a page.

use std::sync::atomic::Ordering;

use super::atomics::{AtomicU64, fence};
use super::hash::{EMPTY, KeyHash, REMOVED};
use super::lines::{Lines, WORDS_PER_LINE};
use super::wide::WideCounters;
use super::word::{VACANT, Word};

const SLOTS_PER_LINE: usize = WORDS_PER_LINE / 2;
/// One is enough for a model, and many would take it too long.
const LINES_PER_PAGE: usize = if cfg!(slidegate_loom) { 1 } else { 64 };
pub(super) const SLOTS_PER_PAGE: usize = SLOTS_PER_LINE * LINES_PER_PAGE;
pub(super) const SLOT_BYTES: usize = 16;

/// Who somebody is in the table: the line where it looks first, and the tag by which it knows itself.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct KeyId {
    pub(super) tag: u64,
    pub(super) home: u32,
}

impl KeyId {
    /// The page in which it lives.
    pub(super) fn page(self) -> usize {
        self.home as usize / LINES_PER_PAGE
    }
}

/// A slot: the tag says whose it is, the word what is counted.
///
/// Who owns a slot changes only under its page's lock; what is counted changes by compare-and-swap, without it.
#[derive(Clone, Copy)]
pub(super) struct Slot<'a> {
    pub(super) tag: &'a AtomicU64,
    word: &'a AtomicU64,
    /// No other slot of the table has it, and what stands beside the slot has the same.
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

    /// Whether `tag` still owned the slot when the word that was loaded last was in it: the former owner's tag is gone
    /// before the new owner's word comes, so whoever sees that word does not see the former tag any more.
    #[inline(always)]
    pub(super) fn is_owned_by(&self, tag: u64) -> bool {
        self.tag.load(Ordering::Acquire) == tag
    }

    /// Whether anybody owns it. Under the page's lock.
    pub(super) fn is_owned(&self) -> bool {
        self.tag.load(Ordering::Relaxed) > REMOVED
    }

    #[inline(always)]
    pub(super) fn replace(&self, before: Word, after: Word) -> bool {
        self.word.compare_exchange(before.0, after.0, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Whether `word` has been in place all the while, and so has what stands beside it.
    #[inline(always)]
    pub(super) fn is_still(&self, word: Word) -> bool {
        fence(Ordering::Acquire);
        self.word.load(Ordering::Relaxed) == word.0
    }

    /// Takes the word away, so that all others come to the page's lock; `false` if it has changed meanwhile.
    /// Under that lock. What stands beside it may be written until [`put`](Self::put).
    pub(super) fn seize(&self, word: Word) -> bool {
        self.replace(word, Word::new(VACANT, word.generation() + 1, 0))
    }

    /// Puts a word into a slot whose word was seized. Under the page's lock.
    pub(super) fn put(&self, word: Word) {
        debug_assert_eq!(self.load().layout(), VACANT);
        debug_assert!(self.is_owned(), "a word is somebody's");
        self.word.store(word.0, Ordering::Release);
    }

    /// Takes the slot from its owner; `false` if the word has changed meanwhile. Under the page's lock.
    pub(super) fn vacate(&self, word: Word) -> bool {
        let is_seized = self.seize(word);
        if is_seized {
            self.tag.store(REMOVED, Ordering::Release);
        }
        is_seized
    }

    /// Gives a vacant slot to `tag`. Under the page's lock.
    pub(super) fn occupy(&self, tag: u64, word: Word) {
        self.tag.store(tag, Ordering::Release);
        self.put(word);
    }
}

/// All slots, in pages.
pub(super) struct Slots {
    lines: Lines,
    count: u32,
}

impl Slots {
    pub(super) fn new(pages: usize) -> Self {
        let count = pages * LINES_PER_PAGE;
        Self { lines: Lines::new(count), count: u32::try_from(count).unwrap_or(u32::MAX) }
    }

    /// What stands beside the slots.
    pub(super) fn wide_counters(&self) -> WideCounters {
        WideCounters(self.lines.alike())
    }

    /// Who a hash stands for in this table.
    #[inline(always)]
    pub(super) fn id(&self, hash: KeyHash) -> KeyId {
        // The upper half of the product is evenly spread over the lines, however many they are.
        let home = (u128::from(hash.place) * u128::from(self.count)) >> 64;
        KeyId { tag: hash.tag, home: home as u32 }
    }

    /// A line of the table: tags first, then words.
    #[inline(always)]
    fn line_words(&self, line: u32) -> Option<&[AtomicU64; WORDS_PER_LINE]> {
        self.lines.get(line)
    }

    /// The slots of a line.
    #[inline]
    fn line(&self, line: u32) -> impl Iterator<Item = Slot<'_>> {
        let words = self.line_words(line).into_iter();
        let first = self.lines.first_word(line);
        words.flat_map(move |words| (0..SLOTS_PER_LINE).map(move |place| Slot::at(words, first, place)))
    }

    /// The slots of a line of a page, the lines counted around.
    pub(super) fn line_of_page(&self, page: usize, line: usize) -> impl Iterator<Item = Slot<'_>> {
        self.line((page * LINES_PER_PAGE + line % LINES_PER_PAGE) as u32)
    }

    /// The slots in which a key may live: its page, from its own line on and around.
    pub(super) fn nearest_first(&self, id: KeyId) -> impl Iterator<Item = Slot<'_>> {
        Self::lines_nearest_first(id).flat_map(move |line| self.line(line))
    }

    /// All slots of a page.
    pub(super) fn whole_page(&self, page: usize) -> impl Iterator<Item = Slot<'_>> {
        (0..LINES_PER_PAGE).flat_map(move |line| self.line_of_page(page, line))
    }

    /// The slot that a key owns if it is in the key's own line, as most are; else any slot of that line. Who owns it has
    /// to be asked anyway, when its word has been loaded.
    #[inline(always)]
    pub(super) fn likely_at_home(&self, id: KeyId) -> Option<Slot<'_>> {
        let words = self.line_words(id.home)?;
        // All are compared before anything is decided by it: which of them it is cannot be foretold, and a branch on
        // it would have the processor wait for the memory instead of going ahead to the next key.
        let mut likely = 0;
        for (place, tag) in words[..SLOTS_PER_LINE].iter().enumerate().skip(1) {
            likely = if tag.load(Ordering::Relaxed) == id.tag { place } else { likely };
        }
        Some(Slot::at(words, self.lines.first_word(id.home), likely))
    }

    /// Whether it is in the key's own line.
    pub(super) fn is_at_home(&self, slot: Slot<'_>, id: KeyId) -> bool {
        slot.number.wrapping_sub(self.lines.first_word(id.home)) < WORDS_PER_LINE
    }

    /// The same as [`find`](Self::find), with a look at the key's own line before. Under the page's lock.
    #[inline(always)]
    pub(super) fn find_likely_at_home(&self, id: KeyId) -> Option<Slot<'_>> {
        let at_home = self.likely_at_home(id).filter(|slot| slot.is_owned_by(id.tag));
        at_home.or_else(|| self.find(id))
    }

    /// The slot that a key owns. A slot that was never used ends the search: a key takes the nearest free slot,
    /// and a used one never becomes unused again.
    pub(super) fn find(&self, id: KeyId) -> Option<Slot<'_>> {
        for line in Self::lines_nearest_first(id) {
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

    /// Begins to bring a key's own line into the cache.
    #[inline]
    pub(super) fn touch(&self, id: KeyId) {
        self.lines.touch(id.home);
    }

    /// The lines of a key's page, from its own on and around.
    #[inline]
    fn lines_nearest_first(id: KeyId) -> impl Iterator<Item = u32> {
        const LINES: u32 = LINES_PER_PAGE as u32;
        let first_of_page = id.home / LINES * LINES;
        (id.home..id.home + LINES).map(move |line| first_of_page + line % LINES)
    }
}

#[cfg(test)]
mod tests {
    use super::super::wide::Wide;
    use super::*;

    /// Step by step what a slow thread sees whose slot is given to another key in between.
    #[test]
    fn a_former_owner_can_neither_write_nor_mistake_the_word_for_its_own() {
        let slots = Slots::new(1);
        let slot = slots.line(0).next().unwrap();
        let counted = |generation| Word::new(5, generation, 7);
        slot.occupy(100, counted(0));
        let read_before = slot.load();
        assert!(slot.is_owned_by(100) && slot.is_still(read_before));

        assert!(slot.vacate(read_before) && !slot.vacate(read_before));
        assert!(!slot.is_owned() && !slot.is_still(read_before));
        let generation = slot.load().generation();
        slot.occupy(200, counted(generation));

        assert_eq!(slot.load().payload(), read_before.payload(), "the words look the same");
        assert!(!slot.replace(read_before, counted(0)), "but the old one cannot be swapped");
        assert!(!slot.is_still(read_before));
        assert!(!slot.is_owned_by(100), "and the new one is not taken for one's own");
    }

    #[test]
    fn a_seized_word_is_nobodys_until_another_is_put() {
        let slots = Slots::new(1);
        let slot = slots.line(63).last().unwrap();
        slot.occupy(100, Word::new(5, 0, 7));
        let word = slot.load();
        assert!(slot.seize(word));
        assert_eq!(slot.load().layout(), VACANT);
        assert!(!slot.seize(word), "only once");
        assert!(!slot.replace(word, word));
        slot.put(Word::new(5, slot.load().generation(), 8));
        assert_eq!(slot.load().payload(), 8);
    }

    #[test]
    fn each_slot_has_a_place_of_its_own_beside_it() {
        let slots = Slots::new(2);
        let wide = slots.wide_counters();
        let all = || (0..2).flat_map(|page| slots.whole_page(page));
        let beside = |number: usize| Wide { start_ms: number as u64, prev: u64::MAX - number as u64 };
        all().enumerate().for_each(|(number, slot)| wide.store(slot, beside(number)));
        assert_eq!(all().count(), 2 * SLOTS_PER_PAGE);
        assert!(all().enumerate().all(|(number, slot)| wide.load(slot) == Some(beside(number))));
    }
}
