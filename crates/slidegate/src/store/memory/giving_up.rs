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

/// Of so many that can go, the one with the least to lose does; of more, as long as that one has little left of its limit, in
/// sixty-fourths: who asks for more than is left is denied already.
const ENOUGH: usize = 16;
const MUCH_64THS: u64 = 48;
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

    /// How many of them there are.
    fn total(self, table: &Table) -> usize {
        match self {
            Self::AnyKey => table.keys(),
            Self::Record => table.records.load(Ordering::Relaxed),
        }
    }

    /// Whether it may soon come to it that somebody has to go. From here on about as many new keys come to a page as it has
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

/// What a look at keys of a page has shown.
struct Look<'a> {
    /// The one with the least to lose.
    least: Option<(Outlook, Slot<'a>)>,
    /// Until when all of them are worth as much, and until when the others are.
    until_ms: u64,
    others_until_ms: u64,
    seen: usize,
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
        candidate.barren(self).begin_anew_if_back(now_ms);
        loop {
            let mut vain = None;
            if !candidate.barren(self).has(page.number, now_ms) {
                match self.give_up_one_of(candidate, &own, page, now_ms) {
                    Ok(slot) => return Ok(Gone::Here(slot)),
                    Err(look) => vain = Some(look),
                }
            }
            if is_elsewhere_enough && self.give_up_elsewhere(candidate, page, now_ms)? {
                return Ok(Gone::Elsewhere);
            }
            if self.settings.when_full == WhenFull::Refuse {
                return Err(candidate.no_room());
            }
            let look = vain.unwrap_or_else(|| self.look(own(), |_, _| false, page, now_ms));
            if is_elsewhere_enough && self.give_up_denied(candidate, &look, page, now_ms)? {
                return Ok(Gone::Elsewhere);
            }
            let (judged, slot) = look.least.ok_or_else(|| candidate.no_room())?;
            if self.clear_denied(candidate, (judged, slot), &look, page, now_ms) {
                return Ok(Gone::Here(slot));
            }
        }
    }

    /// Removes the one of `candidates`, all of them in this page, with the least to lose, if any can go; else says what was
    /// seen.
    fn give_up_one_of<'a, I: Iterator<Item = Slot<'a>>>(
        &self,
        candidate: Candidate,
        candidates: impl Fn() -> I,
        page: &mut Locked<'_>,
        now_ms: u64,
    ) -> Result<Slot<'a>, Look<'a>> {
        let is_enough = |seen, least| {
            let has_little_left = matches!(least, Outlook::Live { used_64ths: MUCH_64THS.., .. });
            seen >= ENOUGH && self.can_go(least) && !has_little_left
        };
        loop {
            let look = self.look(candidates(), is_enough, page, now_ms);
            match look.least {
                Some((judged, slot)) if self.can_go(judged) => {
                    if self.clear_as_judged(judged, slot, page, now_ms) {
                        return Ok(slot);
                    }
                }
                _ => {
                    self.set_barren(candidate, &look, look.until_ms, page);
                    return Err(look);
                }
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
        let mut busy = None;
        for number in others.take(most) {
            // To wait for a lock while another is held would be to wait for ever, if the other does the same.
            let Some(mut other) = self.pages[number].try_lock(number) else {
                busy = Some(number);
                continue;
            };
            barren.begin_at(number);
            // Not slot by slot where there is none.
            let is_any = candidate.count(&other) > 0;
            let slots = || is_any.then(|| self.slots.whole_page(number)).into_iter().flatten();
            let candidates = || slots().filter(|slot| candidate.is_in(slot));
            if self.give_up_one_of(candidate, candidates, &mut other, now_ms).is_ok() {
                return Ok(true);
            }
        }
        match busy {
            Some(number) if self.settings.when_full == WhenFull::Evict => Err(NoRoom::Yet(number)),
            _ => Ok(false),
        }
    }

    /// Removes one of another page although it is denied, as all are: of any if nobody was seen in its own, else of the next
    /// if that has many more.
    fn give_up_denied(
        &self,
        candidate: Candidate,
        own: &Look<'_>,
        page: &Locked<'_>,
        now_ms: u64,
    ) -> Result<bool, NoRoom> {
        let must_be_found = own.least.is_none();
        let (most, more_than) =
            if must_be_found { (self.pages.len(), 0) } else { (1, candidate.count(page) + MORE_THAN_OWN) };
        let first = candidate.barren(self).any();
        for number in (first..self.pages.len()).chain(0..first).take(most) {
            if number == page.number {
                continue;
            }
            let Some(mut other) = self.pages[number].try_lock(number) else { continue };
            if candidate.count(&other) <= more_than {
                continue;
            }
            let candidates = self.slots.whole_page(number).filter(|slot| candidate.is_in(slot));
            let look = self.look(candidates, |_, _| false, &other, now_ms);
            if let Some(least) = look.least
                && self.clear_denied(candidate, least, &look, &mut other, now_ms)
            {
                return Ok(true);
            }
        }
        // Others may come and go where it has just been looked, or be at work.
        if must_be_found && candidate.total(self) > candidate.count(page) {
            return Err(NoRoom::Yet(first));
        }
        Ok(false)
    }

    /// Removes the one with the least to lose although it is denied, and takes note of how long the others are.
    fn clear_denied(
        &self,
        candidate: Candidate,
        (judged, slot): (Outlook, Slot<'_>),
        look: &Look<'_>,
        page: &mut Locked<'_>,
        now_ms: u64,
    ) -> bool {
        // Unless somebody has come meanwhile who can go, and perhaps not alone. Before it is gone, or it would not be all that
        // were seen.
        if !self.can_go(judged) {
            self.set_barren(candidate, look, look.others_until_ms, page);
        }
        let is_gone = self.clear_as_judged(judged, slot, page, now_ms);
        if !is_gone {
            candidate.barren(self).no_longer_than(page.number, judged.until_ms());
        }
        is_gone
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
            if candidate.count(&page) == 0 {
                continue;
            }
            let candidates = self.slots.whole_page(page.number).filter(|slot| candidate.is_in(slot));
            let look = self.look(candidates, |_, least| self.can_go(least), &page, now_ms);
            if !look.least.is_some_and(|(judged, _)| self.can_go(judged)) {
                self.set_barren(candidate, &look, look.until_ms, &mut page);
            }
        }
    }

    /// Takes note that nobody of a page can go until then, if all were seen.
    fn set_barren(&self, candidate: Candidate, look: &Look<'_>, until_ms: u64, page: &mut Locked<'_>) {
        if look.seen == candidate.count(page) {
            page.inner.was_barren = true;
            candidate.barren(self).set(page.number, until_ms);
        }
    }

    /// Takes note that something else is counted in this slot than before.
    #[inline(always)]
    pub(super) fn note_change(&self, slot: Slot<'_>, page: &mut Locked<'_>, now_ms: u64) {
        if page.inner.was_barren {
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

    /// Looks for the key with the least to lose, until that `is_enough` after so many. One that is over is taken as soon as it
    /// is met.
    fn look<'a>(
        &self,
        candidates: impl Iterator<Item = Slot<'a>>,
        is_enough: impl Fn(usize, Outlook) -> bool,
        page: &Locked<'_>,
        now_ms: u64,
    ) -> Look<'a> {
        let mut look = Look { least: None, until_ms: u64::MAX, others_until_ms: u64::MAX, seen: 0 };
        for slot in candidates {
            let judged = self.outlook(slot, slot.load(), page, now_ms);
            look.seen += 1;
            look.until_ms = look.until_ms.min(judged.until_ms());
            let (least, _) = *look.least.get_or_insert((judged, slot));
            if judged < least {
                look.least = Some((judged, slot));
            }
            if look.seen > 1 {
                look.others_until_ms = look.others_until_ms.min(judged.max(least).until_ms());
            }
            let least = judged.min(least);
            if least == Outlook::Over || is_enough(look.seen, least) {
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

#[cfg(test)]
mod tests;
