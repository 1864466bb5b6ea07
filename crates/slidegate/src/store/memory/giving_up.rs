//! Who has to go for a new key: never one that is denied while another can go.

use std::sync::atomic::Ordering;

use super::barren::Barren;
use super::page::Locked;
use super::record::{Outlook, outlook};
use super::room::NoRoom;
use super::settings::WhenFull;
use super::slots::Slot;
use super::table::Table;
use super::word::{RECORD, Word};

/// Of so many that can go, the one with the least to lose does.
const ENOUGH: usize = 16;
/// How many pages a table that refuses looks at for a key that is over, beside the new one's own.
const MOST_LOOKS: usize = 16;
/// By so many keys another page has to have more before it loses one that is denied in place of the new one's own. Without
/// that, pages would fill up and empty by chance, and a full one must give up its own, whoever can go elsewhere.
const MORE_THAN_OWN: usize = 16;

/// Who may go.
#[derive(Clone, Copy)]
pub(super) enum Candidate {
    /// When there are as many keys as may be.
    AnyKey,
    /// When there are no more bytes: one that takes some beside the table.
    Record,
}

impl Candidate {
    const ALL: [Self; 2] = [Self::AnyKey, Self::Record];

    pub(super) fn is_in(self, slot: &Slot<'_>) -> bool {
        match self {
            Self::AnyKey => slot.is_owned(),
            Self::Record => has_record(slot),
        }
    }

    /// Where none of them can go.
    fn barren(self, table: &Table) -> &Barren {
        match self {
            Self::AnyKey => &table.barren,
            Self::Record => &table.barren_of_records,
        }
    }

    /// What is said if none of them goes.
    fn no_room(self) -> NoRoom {
        match self {
            Self::AnyKey => NoRoom::ForKeys,
            Self::Record => NoRoom::ForBytes,
        }
    }

    /// How many of them there are in a page.
    fn count(self, page: &Locked<'_>) -> usize {
        match self {
            Self::AnyKey => page.inner.keys,
            Self::Record => page.inner.records.len(),
        }
    }

    /// Whether it may soon come to it that somebody has to go. From here on as many new keys come to each page as it has
    /// already, before it does.
    fn is_near(self, table: &Table) -> bool {
        match self {
            Self::AnyKey => table.keys() >= table.settings.max_keys / 2,
            Self::Record => table.bytes() >= table.max_bytes / 2,
        }
    }
}

/// Who was given up.
pub(super) enum Gone<'a> {
    Here(Slot<'a>),
    Elsewhere,
}

/// What a look at some keys has shown.
struct Look<'a> {
    least: Option<(Outlook, Slot<'a>)>,
    /// Until when none of them can go, if none can and all were looked at.
    until_ms: u64,
}

impl Table {
    /// Removes a key, which is counted still: of `own`, the candidates of this page, the one with the least to lose if it
    /// can go; else one that can of any other page, if `is_elsewhere_enough`; else, if the table evicts, one that is denied.
    pub(super) fn give_up<'a, I: Iterator<Item = Slot<'a>>>(
        &'a self,
        candidate: Candidate,
        own: impl Fn() -> I,
        is_elsewhere_enough: bool,
        page: &mut Locked<'_>,
        now_ms: u64,
    ) -> Result<Gone<'a>, NoRoom> {
        loop {
            if !candidate.barren(self).has(page.number, now_ms)
                && let Some(slot) = self.give_up_one_of(&own, page, now_ms).0
            {
                return Ok(Gone::Here(slot));
            }
            if is_elsewhere_enough && self.give_up_elsewhere(candidate, page, now_ms)? {
                return Ok(Gone::Elsewhere);
            }
            if self.settings.when_full == WhenFull::Refuse {
                return Err(candidate.no_room());
            }
            let least = self.look(own(), usize::MAX, page, now_ms).least;
            if is_elsewhere_enough {
                let more_than = least.map_or(0, |_| candidate.count(page) + MORE_THAN_OWN);
                if self.give_up_denied(candidate, more_than, page, now_ms)? {
                    return Ok(Gone::Elsewhere);
                }
            }
            let (judged, slot) = least.ok_or_else(|| candidate.no_room())?;
            if self.clear_as_judged(judged, slot, page, now_ms) {
                return Ok(Gone::Here(slot));
            }
        }
    }

    /// Removes the one of `candidates`, all of them in this page, with the least to lose, if any can go; else says until
    /// when none can.
    fn give_up_one_of<'a, I: Iterator<Item = Slot<'a>>>(
        &self,
        candidates: impl Fn() -> I,
        page: &mut Locked<'_>,
        now_ms: u64,
    ) -> (Option<Slot<'a>>, u64) {
        loop {
            let Look { least, until_ms } = self.look(candidates(), ENOUGH, page, now_ms);
            match least {
                Some((judged, slot)) if self.can_go(judged) => {
                    if self.clear_as_judged(judged, slot, page, now_ms) {
                        return (Some(slot), 0);
                    }
                }
                _ => return (None, until_ms),
            }
        }
    }

    /// Removes one that can go from any other page, if there is one.
    fn give_up_elsewhere(
        &self,
        candidate: Candidate,
        page: &Locked<'_>,
        now_ms: u64,
    ) -> Result<bool, NoRoom> {
        let most = if self.settings.when_full == WhenFull::Refuse { MOST_LOOKS } else { usize::MAX };
        let barren = candidate.barren(self);
        let others = barren.others(now_ms).filter(|number| *number != page.number);
        let mut is_somebody_busy = false;
        for number in others.take(most) {
            // To wait for a lock while another is held would be to wait for ever, if the other does the same.
            let Some(mut other) = self.pages[number].try_lock(number) else {
                is_somebody_busy = true;
                continue;
            };
            barren.begin_at(number);
            let candidates = || self.slots.whole_page(number).filter(|slot| candidate.is_in(slot));
            match self.give_up_one_of(candidates, &mut other, now_ms) {
                (Some(_), _) => return Ok(true),
                (None, until_ms) => self.set_barren(candidate, &mut other, until_ms),
            }
        }
        if is_somebody_busy && self.settings.when_full == WhenFull::Evict {
            return Err(NoRoom::Yet);
        }
        Ok(false)
    }

    /// Removes one although it is denied, as all are: from the next page, if it has more than so many; from any, if that is
    /// none.
    fn give_up_denied(
        &self,
        candidate: Candidate,
        more_than: usize,
        page: &Locked<'_>,
        now_ms: u64,
    ) -> Result<bool, NoRoom> {
        let must_be_found = more_than == 0;
        let mut is_somebody_busy = false;
        for _ in 0..if must_be_found { self.pages.len() } else { 1 } {
            let number = candidate.barren(self).any();
            if number == page.number {
                continue;
            }
            let Some(mut other) = self.pages[number].try_lock(number) else {
                is_somebody_busy = true;
                continue;
            };
            if candidate.count(&other) <= more_than {
                continue;
            }
            let candidates = self.slots.whole_page(number).filter(|slot| candidate.is_in(slot));
            if let Some((judged, slot)) = self.look(candidates, usize::MAX, &other, now_ms).least
                && self.clear_as_judged(judged, slot, &mut other, now_ms)
            {
                return Ok(true);
            }
        }
        if must_be_found && is_somebody_busy { Err(NoRoom::Yet) } else { Ok(false) }
    }

    /// Takes note that a key of this page has spent the last of its limit: it may have been the only one that could go.
    ///
    /// Who has to make room finds so that it is known of nearly every page, and need not look at all of them at once.
    #[cold]
    pub(super) fn note_denied(&self, page: usize, now_ms: u64) {
        if self.settings.when_full == WhenFull::Refuse {
            return;
        }
        for candidate in Candidate::ALL {
            if !candidate.is_near(self) || candidate.barren(self).has(page, now_ms) {
                continue;
            }
            let mut page = self.pages[page].lock(page);
            let candidates = self.slots.whole_page(page.number).filter(|slot| candidate.is_in(slot));
            let look = self.look(candidates, 1, &page, now_ms);
            if !look.least.is_some_and(|(judged, _)| self.can_go(judged)) {
                self.set_barren(candidate, &mut page, look.until_ms);
            }
        }
    }

    fn set_barren(&self, candidate: Candidate, page: &mut Locked<'_>, until_ms: u64) {
        page.inner.is_barren = true;
        candidate.barren(self).set(page.number, until_ms);
    }

    /// Takes note that something else is counted in this slot than before.
    #[inline(always)]
    pub(super) fn note_change(&self, slot: Slot<'_>, page: &mut Locked<'_>, now_ms: u64) {
        if page.inner.is_barren {
            self.note_change_in_barren(slot, page, now_ms);
        }
    }

    #[cold]
    fn note_change_in_barren(&self, slot: Slot<'_>, page: &Locked<'_>, now_ms: u64) {
        let word = slot.load();
        let judged = self.outlook(slot, word, page, now_ms);
        let until_ms = if self.can_go(judged) { 0 } else { judged.until_ms() };
        self.barren.no_longer_than(page.number, until_ms);
        if word.layout() == RECORD {
            self.barren_of_records.no_longer_than(page.number, until_ms);
        }
    }

    /// Looks for the key with the least to lose, until there were so many, and one of them that can go. One that is over is
    /// taken as soon as it is met, and looked for among all if no other can go.
    fn look<'a>(
        &self,
        candidates: impl Iterator<Item = Slot<'a>>,
        enough: usize,
        page: &Locked<'_>,
        now_ms: u64,
    ) -> Look<'a> {
        let mut look = Look { least: None, until_ms: u64::MAX };
        for (seen, slot) in (1..).zip(candidates) {
            let judged = self.outlook(slot, slot.load(), page, now_ms);
            look.until_ms = look.until_ms.min(judged.until_ms());
            let (least, _) = *look.least.get_or_insert((judged, slot));
            if judged < least {
                look.least = Some((judged, slot));
            }
            let least = judged.min(least);
            if least == Outlook::Over || (seen >= enough && self.can_go(least)) {
                break;
            }
        }
        look
    }

    /// Whether a key may go although there are others.
    fn can_go(&self, judged: Outlook) -> bool {
        match judged {
            Outlook::Over => true,
            Outlook::Live { .. } => self.settings.when_full == WhenFull::Evict,
            Outlook::Denied { .. } => false,
        }
    }

    /// Removes the key of a slot unless it has more to lose than it was judged by: others count meanwhile, and it may
    /// be denied by now.
    fn clear_as_judged(&self, judged: Outlook, slot: Slot<'_>, page: &mut Locked<'_>, now_ms: u64) -> bool {
        loop {
            let word = slot.load();
            let outlook = self.outlook(slot, word, page, now_ms);
            if outlook > judged {
                return false;
            }
            if self.clear(slot, word, page) {
                if outlook != Outlook::Over {
                    self.evicted.fetch_add(1, Ordering::Relaxed);
                }
                return true;
            }
        }
    }

    /// What would be lost with this slot, whose word is `word`.
    pub(super) fn outlook(&self, slot: Slot<'_>, word: Word, page: &Locked<'_>, now_ms: u64) -> Outlook {
        if word.layout() == RECORD {
            let record = page.inner.records.get(word.record_number());
            return record.map_or(Outlook::Over, |record| record.outlook(now_ms));
        }
        let counted = self.counted(slot, word);
        counted.map_or(Outlook::Over, |(state, quota)| outlook(&state, quota, now_ms))
    }
}

pub(super) fn has_record(slot: &Slot<'_>) -> bool {
    slot.is_owned() && slot.load().layout() == RECORD
}
