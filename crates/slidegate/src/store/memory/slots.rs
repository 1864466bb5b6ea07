//! The flat memory of the table: lines of four slots, sixty-four lines to a page.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use super::hash::{EMPTY, KeyId, REMOVED};
use super::layout::{VACANT, Word};

const SLOTS_PER_LINE: usize = 4;
const LINES_PER_PAGE: usize = 64;
const WORDS_PER_LINE: usize = 2 * SLOTS_PER_LINE;
pub(super) const SLOTS_PER_PAGE: usize = SLOTS_PER_LINE * LINES_PER_PAGE;
pub(super) const SLOT_BYTES: usize = 16;

/// A slot: the tag says whose it is, the word what is counted.
///
/// Who owns a slot changes only under its page's lock; what is counted changes by compare-and-swap, without it.
#[derive(Clone, Copy)]
pub(super) struct Slot<'a> {
    pub(super) tag: &'a AtomicU64,
    word: &'a AtomicU64,
    /// Its page, and its number there.
    pub(super) page: usize,
    pub(super) number: usize,
}

impl Slot<'_> {
    #[inline(always)]
    pub(super) fn load(&self) -> Word {
        Word(self.word.load(Ordering::Acquire))
    }

    /// Whether `tag` still owned the slot when the word that was loaded last was in it: the tag is stored before
    /// the new owner's word, so whoever sees that word sees the new tag as well.
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
        self.word.store(word.0, Ordering::Release);
    }

    /// Takes the slot from its owner and returns its last word. Under the page's lock.
    pub(super) fn vacate(&self) -> Word {
        loop {
            let word = self.load();
            if self.seize(word) {
                self.tag.store(REMOVED, Ordering::Release);
                return word;
            }
        }
    }

    /// Gives a vacant slot to `tag`. Under the page's lock.
    pub(super) fn occupy(&self, tag: u64, word: Word) {
        self.tag.store(tag, Ordering::Release);
        self.put(word);
    }
}

/// The part of a wide counter that changes only from one window to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Wide {
    pub(super) start_ms: u64,
    pub(super) prev: u64,
}

/// Room for the wide counters of a page, made when there is the first. Each slot has its own.
#[derive(Default)]
pub(super) struct WidePage(OnceLock<Box<[[AtomicU64; 2]; SLOTS_PER_PAGE]>>);

pub(super) const WIDE_PAGE_BYTES: usize = SLOTS_PER_PAGE * 2 * size_of::<u64>();

impl WidePage {
    pub(super) fn exists(&self) -> bool {
        self.0.get().is_some()
    }

    /// What stands beside a slot. Only true if the slot's word is the same before and after.
    #[inline(always)]
    pub(super) fn load(&self, number: usize) -> Wide {
        let Some(page) = self.0.get() else { return Wide { start_ms: 0, prev: 0 } };
        let [start_ms, prev] = &page[number % SLOTS_PER_PAGE];
        Wide { start_ms: start_ms.load(Ordering::Relaxed), prev: prev.load(Ordering::Relaxed) }
    }

    /// Under the page's lock, while the slot's word is seized or vacant.
    pub(super) fn store(&self, number: usize, wide: Wide) {
        let page = self.0.get_or_init(bytemuck::zeroed_box);
        let [start_ms, prev] = &page[number];
        // Whoever sees any of this must see that the word was taken away before.
        fence(Ordering::Release);
        start_ms.store(wide.start_ms, Ordering::Relaxed);
        prev.store(wide.prev, Ordering::Relaxed);
    }
}

/// All slots, in pages. Zeroed by the operating system, which hands out memory as it is touched.
pub(super) struct Slots {
    words: Box<[AtomicU64]>,
    /// Words to skip so that each line is a cache line.
    skip: usize,
    pages: usize,
}

impl Slots {
    pub(super) fn new(pages: usize) -> Self {
        let words: Box<[AtomicU64]> =
            bytemuck::zeroed_slice_box(pages * LINES_PER_PAGE * WORDS_PER_LINE + WORDS_PER_LINE);
        let misaligned = words.as_ptr().addr() % 64;
        let skip = if misaligned == 0 { 0 } else { (64 - misaligned) / size_of::<AtomicU64>() };
        Self { words, skip, pages }
    }

    /// The page of a key.
    #[inline(always)]
    pub(super) fn page(&self, id: KeyId) -> usize {
        // The upper half of the product is evenly spread over the pages, however many they are.
        ((u128::from(id.place) * self.pages as u128) >> 64) as usize
    }

    /// A line of a page: tags first, then words.
    #[inline(always)]
    fn line_words(&self, page: usize, line: usize) -> Option<&[AtomicU64; WORDS_PER_LINE]> {
        let first = self.skip + (page * LINES_PER_PAGE + line) * WORDS_PER_LINE;
        self.words.get(first..first + WORDS_PER_LINE)?.first_chunk()
    }

    /// The slots of a line of a page.
    #[inline]
    pub(super) fn line(&self, page: usize, line: usize) -> impl Iterator<Item = Slot<'_>> {
        let line = line % LINES_PER_PAGE;
        let words = self.line_words(page, line).into_iter();
        words.flat_map(move |words| {
            let (tags, words) = words.split_at(SLOTS_PER_LINE);
            let numbers = line * SLOTS_PER_LINE..;
            tags.iter().zip(words).zip(numbers).map(move |((tag, word), number)| Slot {
                tag,
                word,
                page,
                number,
            })
        })
    }

    /// The slots in which a key may live: its page, from its own line on and around.
    pub(super) fn nearest_first(&self, id: KeyId) -> impl Iterator<Item = Slot<'_>> {
        let (page, home) = (self.page(id), Self::home_line(id));
        (home..home + LINES_PER_PAGE).flat_map(move |line| self.line(page, line))
    }

    /// All slots of a page.
    pub(super) fn whole_page(&self, page: usize) -> impl Iterator<Item = Slot<'_>> {
        (0..LINES_PER_PAGE).flat_map(move |line| self.line(page, line))
    }

    /// The slot that a key owns, if it is in the key's own line, as most are.
    #[inline(always)]
    pub(super) fn find_at_home(&self, id: KeyId) -> Option<Slot<'_>> {
        self.find_in_line(self.page(id), Self::home_line(id), id.tag)?.ok()
    }

    /// The slot that a key owns. A slot that was never used ends the search: a key takes the nearest free slot,
    /// and a used one never becomes unused again.
    pub(super) fn find(&self, id: KeyId) -> Option<Slot<'_>> {
        let (page, home) = (self.page(id), Self::home_line(id));
        for line in home..home + LINES_PER_PAGE {
            let line = line % LINES_PER_PAGE;
            match self.find_in_line(page, line, id.tag)? {
                Ok(slot) => return Some(slot),
                Err(tags) if tags.contains(&EMPTY) => return None,
                Err(_) => {}
            }
        }
        None
    }

    /// The slot with that tag, or else the tags that are there.
    #[inline(always)]
    fn find_in_line(
        &self,
        page: usize,
        line: usize,
        tag: u64,
    ) -> Option<Result<Slot<'_>, [u64; SLOTS_PER_LINE]>> {
        let words = self.line_words(page, line)?;
        // All four are compared before anything is decided by it: which of them it is cannot be foretold, and a
        // branch on it would have the processor wait for the memory instead of going ahead to the next key.
        let tags = [0, 1, 2, 3].map(|place: usize| words[place].load(Ordering::Acquire));
        let mut place = SLOTS_PER_LINE;
        for (candidate, found) in tags.iter().enumerate() {
            place = if *found == tag { candidate } else { place };
        }
        if place == SLOTS_PER_LINE {
            return Some(Err(tags));
        }
        let number = line * SLOTS_PER_LINE + place;
        Some(Ok(Slot { tag: &words[place], word: &words[SLOTS_PER_LINE + place], page, number }))
    }

    /// Begins to bring a key's own line into the cache.
    #[inline]
    pub(super) fn touch(&self, id: KeyId) {
        let mut line = self.line(self.page(id), Self::home_line(id));
        std::hint::black_box(line.next().map(|slot| slot.tag.load(Ordering::Relaxed)));
    }

    #[inline(always)]
    fn home_line(id: KeyId) -> usize {
        // The low bits; the page is chosen by the high ones.
        id.place as usize % LINES_PER_PAGE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Step by step what a slow thread sees whose slot is given to another key in between.
    #[test]
    fn a_former_owner_can_neither_write_nor_mistake_the_word_for_its_own() {
        let slots = Slots::new(1);
        let slot = slots.line(0, 0).next().unwrap();
        let counted = |generation| Word::new(5, generation, 7);
        slot.occupy(100, counted(0));
        let read_before = slot.load();
        assert!(slot.is_owned_by(100) && slot.is_still(read_before));

        assert_eq!(slot.vacate(), read_before);
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
        let slot = slots.line(0, 63).last().unwrap();
        slot.occupy(100, Word::new(5, 0, 7));
        let word = slot.load();
        assert!(slot.seize(word));
        assert_eq!(slot.load().layout(), VACANT);
        assert!(!slot.seize(word), "only once");
        assert!(!slot.replace(word, word));
        slot.put(Word::new(5, slot.load().generation(), 8));
        assert_eq!((slot.load().payload(), slot.number), (8, 255));
    }
}
