//! A word of the table: `layout (10) | generation (6) | payload (48)`.

pub(super) const PAYLOAD_BITS: u32 = 48;
const GENERATION_BITS: u32 = 6;
const LAYOUT_BITS: u32 = 64 - PAYLOAD_BITS - GENERATION_BITS;
pub(super) const LAYOUTS: usize = 1 << LAYOUT_BITS;
pub(super) const PAYLOAD_MASK: u64 = (1 << PAYLOAD_BITS) - 1;
const GENERATION_MASK: u64 = (1 << GENERATION_BITS) - 1;

/// Layout of a vacant word: its slot is free, or is being rewritten under the page's lock.
pub(super) const VACANT: u16 = 0;
/// Layout of a word whose payload is the number of a record outside the table.
pub(super) const RECORD: u16 = (1 << LAYOUT_BITS) - 1;

/// The word of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Word(pub(super) u64);

impl Word {
    /// Returns the word with `spent` added to the current count, which is its lowest part. The sum must fit.
    #[inline(always)]
    pub(super) const fn plus(self, spent: u64) -> Self {
        Self(self.0 + spent)
    }

    #[inline(always)]
    pub(super) const fn new(layout: u16, generation: u64, payload: u64) -> Self {
        Self((layout as u64) << (64 - LAYOUT_BITS) | (generation & GENERATION_MASK) << PAYLOAD_BITS | payload)
    }

    #[inline(always)]
    pub(super) const fn layout(self) -> u16 {
        (self.0 >> (64 - LAYOUT_BITS)) as u16
    }

    /// Returns the generation: the number of times that the word was seized. It makes a compare-and-swap by a reader of a
    /// former owner's word fail, even if the new owner's word is otherwise the same.
    #[inline(always)]
    pub(super) const fn generation(self) -> u64 {
        (self.0 >> PAYLOAD_BITS) & GENERATION_MASK
    }

    #[inline(always)]
    pub(super) const fn payload(self) -> u64 {
        self.0 & PAYLOAD_MASK
    }

    /// Returns the number of the record that the word refers to.
    pub(super) fn record_number(self) -> usize {
        debug_assert_eq!(self.layout(), RECORD);
        usize::try_from(self.payload()).unwrap_or(usize::MAX)
    }
}
