//! A word of the table: `layout (10) | generation (6) | payload (48)`.

pub(super) const PAYLOAD_BITS: u32 = 48;
const GENERATION_BITS: u32 = 6;
const LAYOUT_BITS: u32 = 64 - PAYLOAD_BITS - GENERATION_BITS;
pub(super) const LAYOUTS: usize = 1 << LAYOUT_BITS;
pub(super) const PAYLOAD_MASK: u64 = (1 << PAYLOAD_BITS) - 1;
const GENERATION_MASK: u64 = (1 << GENERATION_BITS) - 1;

/// Nobody's word: its place is free, or changing hands.
pub(super) const VACANT: u16 = 0;
/// The payload is the number of a record beside the table.
pub(super) const RECORD: u16 = (1 << LAYOUT_BITS) - 1;

/// A table word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Word(pub(super) u64);

impl Word {
    /// With `spent` more in the current count, which is the lowest part of the word and has room for it.
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

    /// Counts how often the place has changed hands, so that whoever read a word of its former owner cannot
    /// write over the new one's, even if the two look the same otherwise.
    #[inline(always)]
    pub(super) const fn generation(self) -> u64 {
        (self.0 >> PAYLOAD_BITS) & GENERATION_MASK
    }

    #[inline(always)]
    pub(super) const fn payload(self) -> u64 {
        self.0 & PAYLOAD_MASK
    }

    /// The number of the record that the word stands for.
    pub(super) fn record_number(self) -> usize {
        debug_assert_eq!(self.layout(), RECORD);
        usize::try_from(self.payload()).unwrap_or(usize::MAX)
    }
}
