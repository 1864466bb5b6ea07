//! Choice of the key that is evicted for a new one: never a denied key while another can be evicted.

use std::sync::atomic::Ordering;

use super::super::eviction_rank::{EvictionRank, eviction_rank};
use super::super::page::{DeniedPages, LockedPage};
use super::super::settings::WhenFull;
use super::super::slots::Slot;
use super::super::table::Table;
use super::super::word::{RECORD, Word};
use super::capacity_error::CapacityError;

/// Keys compared before the lowest-ranked evictable one is evicted. The scan goes on while the lowest-ranked key has
/// spent [`NEARLY_EXHAUSTED_64THS`] of its limit: a client that requests more than its key has left is denied already.
const MIN_CANDIDATES: usize = 16;
const NEARLY_EXHAUSTED_64THS: u64 = 48;
/// Other pages that [`WhenFull::Refuse`] scans for an idle key, besides the page of the new key.
const MAX_PAGES_SCANNED: usize = 16;
/// Excess of keys that another page must have to lose a denied key in place of the new key's page. It keeps the load of
/// the pages even: a page whose slots are all taken must evict one of its own keys, even if other pages have better
/// victims.
const MIN_EXCESS: usize = 16;

/// Keys among which a victim is chosen.
#[derive(Clone, Copy)]
pub(in super::super) enum CandidateKind {
    /// All keys, when `max_keys` is reached.
    AnyKey,
    /// Keys with a record outside the table, when `max_bytes` is reached.
    Record,
}

impl CandidateKind {
    const ALL: [Self; 2] = [Self::AnyKey, Self::Record];

    pub(in super::super) fn matches(self, slot: &Slot<'_>) -> bool {
        match self {
            Self::AnyKey => slot.is_owned(),
            Self::Record => has_record(slot),
        }
    }

    /// Returns the index of pages whose candidates are all denied.
    fn denied_pages(self, table: &Table) -> &DeniedPages {
        match self {
            Self::AnyKey => &table.denied_pages,
            Self::Record => &table.denied_record_pages,
        }
    }

    /// Returns the error for a search without a victim.
    fn capacity_error(self) -> CapacityError {
        match self {
            Self::AnyKey => CapacityError::Keys,
            Self::Record => CapacityError::Bytes,
        }
    }

    /// Returns the number of candidates in a page.
    fn count(self, page: &LockedPage<'_>) -> usize {
        match self {
            Self::AnyKey => page.state.keys,
            Self::Record => page.state.records.len(),
        }
    }

    /// Returns the number of candidates in the table.
    fn total(self, table: &Table) -> usize {
        match self {
            Self::AnyKey => table.keys(),
            Self::Record => table.records.load(Ordering::Relaxed),
        }
    }

    /// Returns whether evictions may begin soon: half of the limit is used. From here on each page receives about as
    /// many new keys as it holds before the limit is reached, which is enough to learn which pages are denied.
    fn is_near_limit(self, table: &Table) -> bool {
        match self {
            Self::AnyKey => table.keys() >= table.settings.max_keys / 2,
            Self::Record => table.bytes() >= table.max_bytes / 2,
        }
    }
}

/// Place of an evicted key.
pub(in super::super) enum Evicted<'a> {
    InPage(Slot<'a>),
    InOtherPage,
}

/// Result of a scan of candidates of one page.
pub(super) struct PageScan<'a> {
    /// Candidate of the lowest rank.
    pub(super) lowest: Option<(EvictionRank, Slot<'a>)>,
    /// Time until which all scanned candidates keep their ranks.
    until_ms: u64,
    /// Time until which all scanned candidates except the lowest-ranked keep their ranks.
    others_until_ms: u64,
    scanned: usize,
}

impl Table {
    /// Evicts a key, without changing the count of keys. Tries in this order:
    /// 1. the lowest-ranked of `own`, the candidates of this page, if it is evictable;
    /// 2. an evictable key of another page, if `may_use_other_page`;
    /// 3. a denied key, if the table evicts.
    pub(in super::super) fn evict<'a, I: Iterator<Item = Slot<'a>>>(
        &'a self,
        kind: CandidateKind,
        own: impl Fn() -> I,
        may_use_other_page: bool,
        page: &mut LockedPage<'_>,
        now_ms: u64,
    ) -> Result<Evicted<'a>, CapacityError> {
        kind.denied_pages(self).clear_if_clock_stepped_back(now_ms);
        loop {
            let mut own_scan = None;
            if !kind.denied_pages(self).contains(page.number, now_ms) {
                match self.evict_from_page(kind, &own, page, now_ms) {
                    Ok(slot) => return Ok(Evicted::InPage(slot)),
                    Err(scan) => own_scan = Some(scan),
                }
            }
            if may_use_other_page && self.evict_from_other_page(kind, page, now_ms)? {
                return Ok(Evicted::InOtherPage);
            }
            if self.settings.when_full == WhenFull::Refuse {
                return Err(kind.capacity_error());
            }
            let scan = own_scan.unwrap_or_else(|| self.scan(own(), |_, _| false, page, now_ms));
            if may_use_other_page && self.evict_denied_from_other_page(kind, &scan, page, now_ms)? {
                return Ok(Evicted::InOtherPage);
            }
            let (rank, slot) = scan.lowest.ok_or_else(|| kind.capacity_error())?;
            if self.clear_denied(kind, (rank, slot), &scan, page, now_ms) {
                return Ok(Evicted::InPage(slot));
            }
        }
    }

    /// Evicts the lowest-ranked of `candidates`, all of them in this page, if one is evictable; else returns the scan.
    fn evict_from_page<'a, I: Iterator<Item = Slot<'a>>>(
        &self,
        kind: CandidateKind,
        candidates: impl Fn() -> I,
        page: &mut LockedPage<'_>,
        now_ms: u64,
    ) -> Result<Slot<'a>, PageScan<'a>> {
        let is_enough = |scanned, lowest| {
            let is_nearly_exhausted =
                matches!(lowest, EvictionRank::Counting { used_64ths: NEARLY_EXHAUSTED_64THS.., .. });
            scanned >= MIN_CANDIDATES && self.is_evictable(lowest) && !is_nearly_exhausted
        };
        loop {
            let scan = self.scan(candidates(), is_enough, page, now_ms);
            match scan.lowest {
                Some((rank, slot)) if self.is_evictable(rank) => {
                    if self.clear_unless_ranked_above(rank, slot, page, now_ms) {
                        return Ok(slot);
                    }
                }
                _ => {
                    self.mark_page_denied(kind, &scan, scan.until_ms, page);
                    return Err(scan);
                }
            }
        }
    }

    /// Evicts an evictable key of another page, if there is one.
    fn evict_from_other_page(
        &self,
        kind: CandidateKind,
        page: &LockedPage<'_>,
        now_ms: u64,
    ) -> Result<bool, CapacityError> {
        let max_pages =
            if self.settings.when_full == WhenFull::Refuse { MAX_PAGES_SCANNED } else { usize::MAX };
        let denied_pages = kind.denied_pages(self);
        let others = denied_pages.possible_pages(now_ms).filter(|number| *number != page.number);
        let mut busy = None;
        for number in others.take(max_pages) {
            // Waiting here, with a lock held, could deadlock: the other thread may wait for this page.
            let Some(mut other) = self.pages[number].try_lock(number) else {
                busy = Some(number);
                continue;
            };
            denied_pages.start_next_search_at(number);
            let is_any = kind.count(&other) > 0;
            let slots = || is_any.then(|| self.slots.whole_page(number)).into_iter().flatten();
            let candidates = || slots().filter(|slot| kind.matches(slot));
            if self.evict_from_page(kind, candidates, &mut other, now_ms).is_ok() {
                return Ok(true);
            }
        }
        match busy {
            Some(number) if self.settings.when_full == WhenFull::Evict => Err(CapacityError::Busy(number)),
            _ => Ok(false),
        }
    }

    /// Evicts a denied key of another page, when all keys are denied. If the own page has no candidate, any page will
    /// do; else only the next page in rotation is tried, and only if it has [`MIN_EXCESS`] more candidates.
    fn evict_denied_from_other_page(
        &self,
        kind: CandidateKind,
        own: &PageScan<'_>,
        page: &LockedPage<'_>,
        now_ms: u64,
    ) -> Result<bool, CapacityError> {
        let is_own_page_empty = own.lowest.is_none();
        let (max_pages, min_count) =
            if is_own_page_empty { (self.pages.len(), 0) } else { (1, kind.count(page) + MIN_EXCESS) };
        let first = kind.denied_pages(self).next_start();
        for number in (first..self.pages.len()).chain(0..first).take(max_pages) {
            if number == page.number {
                continue;
            }
            let Some(mut other) = self.pages[number].try_lock(number) else { continue };
            if kind.count(&other) <= min_count {
                continue;
            }
            let candidates = self.slots.whole_page(number).filter(|slot| kind.matches(slot));
            let scan = self.scan(candidates, |_, _| false, &other, now_ms);
            if let Some(lowest) = scan.lowest
                && self.clear_denied(kind, lowest, &scan, &mut other, now_ms)
            {
                return Ok(true);
            }
        }
        // Candidates exist, but their pages were locked or changed during the search.
        if is_own_page_empty && kind.total(self) > kind.count(page) {
            return Err(CapacityError::Busy(first));
        }
        Ok(false)
    }

    /// Evicts the lowest-ranked candidate although it is denied, and records until when the others are.
    pub(super) fn clear_denied(
        &self,
        kind: CandidateKind,
        (rank, slot): (EvictionRank, Slot<'_>),
        scan: &PageScan<'_>,
        page: &mut LockedPage<'_>,
        now_ms: u64,
    ) -> bool {
        // Not if a new key, which is evictable, came since the page was marked: there may be more. The page is marked
        // before the key is cleared, while the number of scanned keys still equals the number of keys in the page.
        if !self.is_evictable(rank) {
            self.mark_page_denied(kind, scan, scan.others_until_ms, page);
        }
        let is_cleared = self.clear_unless_ranked_above(rank, slot, page, now_ms);
        if !is_cleared {
            kind.denied_pages(self).shorten_to(page.number, rank.until_ms());
        }
        is_cleared
    }

    /// Marks the page as denied if the key that has just spent the last of its limit was its last evictable one.
    ///
    /// Without this, the first eviction from a table of denied keys would scan every page.
    #[cold]
    pub(in super::super) fn note_exhausted_key(&self, page: usize, now_ms: u64) {
        if self.settings.when_full == WhenFull::Refuse {
            return;
        }
        for kind in CandidateKind::ALL {
            if !kind.is_near_limit(self) || kind.denied_pages(self).contains(page, now_ms) {
                continue;
            }
            let mut page = self.pages[page].lock(page);
            if kind.count(&page) == 0 {
                continue;
            }
            let candidates = self.slots.whole_page(page.number).filter(|slot| kind.matches(slot));
            let scan = self.scan(candidates, |_, lowest| self.is_evictable(lowest), &page, now_ms);
            if !scan.lowest.is_some_and(|(rank, _)| self.is_evictable(rank)) {
                self.mark_page_denied(kind, &scan, scan.until_ms, &mut page);
            }
        }
    }

    /// Marks the page as denied until then, if all of its candidates were scanned.
    fn mark_page_denied(
        &self,
        kind: CandidateKind,
        scan: &PageScan<'_>,
        until_ms: u64,
        page: &mut LockedPage<'_>,
    ) {
        if scan.scanned == kind.count(page) {
            page.state.was_denied = true;
            kind.denied_pages(self).set(page.number, until_ms);
        }
    }

    /// Updates the index of denied pages after the counter of this slot has changed.
    #[inline(always)]
    pub(in super::super) fn note_counter_change(
        &self,
        slot: Slot<'_>,
        page: &mut LockedPage<'_>,
        now_ms: u64,
    ) {
        if page.state.was_denied {
            self.update_denied_pages(slot, page, now_ms);
        }
    }

    #[cold]
    fn update_denied_pages(&self, slot: Slot<'_>, page: &LockedPage<'_>, now_ms: u64) {
        let word = slot.load();
        let rank = self.eviction_rank(slot, word, page, now_ms);
        let until_ms = if self.is_evictable(rank) { 0 } else { rank.until_ms() };
        self.denied_pages.shorten_to(page.number, until_ms);
        if word.layout() == RECORD {
            self.denied_record_pages.shorten_to(page.number, until_ms);
        }
    }

    /// Scans candidates for the lowest rank, until `is_enough` of the number scanned and the lowest rank, or until an
    /// idle key is found.
    pub(super) fn scan<'a>(
        &self,
        candidates: impl Iterator<Item = Slot<'a>>,
        is_enough: impl Fn(usize, EvictionRank) -> bool,
        page: &LockedPage<'_>,
        now_ms: u64,
    ) -> PageScan<'a> {
        let mut scan = PageScan { lowest: None, until_ms: u64::MAX, others_until_ms: u64::MAX, scanned: 0 };
        for slot in candidates {
            let rank = self.eviction_rank(slot, slot.load(), page, now_ms);
            scan.scanned += 1;
            scan.until_ms = scan.until_ms.min(rank.until_ms());
            let (lowest, _) = *scan.lowest.get_or_insert((rank, slot));
            if rank < lowest {
                scan.lowest = Some((rank, slot));
            }
            if scan.scanned > 1 {
                scan.others_until_ms = scan.others_until_ms.min(rank.max(lowest).until_ms());
            }
            let lowest = rank.min(lowest);
            if lowest == EvictionRank::Idle || is_enough(scan.scanned, lowest) {
                break;
            }
        }
        scan
    }

    /// Returns whether a key of this rank may be evicted while there are others.
    fn is_evictable(&self, rank: EvictionRank) -> bool {
        match rank {
            EvictionRank::Idle => true,
            EvictionRank::Counting { .. } => self.settings.when_full == WhenFull::Evict,
            EvictionRank::Denied { .. } => false,
        }
    }

    /// Evicts the key of a slot unless its rank has risen above `max_rank`: other threads count without the lock, and
    /// the key may be denied by now.
    fn clear_unless_ranked_above(
        &self,
        max_rank: EvictionRank,
        slot: Slot<'_>,
        page: &mut LockedPage<'_>,
        now_ms: u64,
    ) -> bool {
        loop {
            let word = slot.load();
            let rank = self.eviction_rank(slot, word, page, now_ms);
            if rank > max_rank {
                return false;
            }
            if self.clear(slot, word, page) {
                if rank != EvictionRank::Idle {
                    self.evicted.fetch_add(1, Ordering::Relaxed);
                }
                return true;
            }
        }
    }

    /// Returns the rank of the key in this slot, whose word is `word`.
    pub(in super::super) fn eviction_rank(
        &self,
        slot: Slot<'_>,
        word: Word,
        page: &LockedPage<'_>,
        now_ms: u64,
    ) -> EvictionRank {
        if word.layout() == RECORD {
            let record = page.state.records.get(word.record_number());
            return record.map_or(EvictionRank::Idle, |record| record.eviction_rank(now_ms));
        }
        let counted = self.read_state(slot, word);
        counted.map_or(EvictionRank::Idle, |(state, quota)| eviction_rank(&state, quota, now_ms))
    }
}

pub(in super::super) fn has_record(slot: &Slot<'_>) -> bool {
    slot.is_owned() && slot.load().layout() == RECORD
}
