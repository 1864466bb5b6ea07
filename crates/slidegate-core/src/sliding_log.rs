//! `sliding-log`: the exact log of all admissions, in one to two bytes per entry at usual rates.
//!
//! The oldest and the newest entry are stored decoded. The entries between them are encoded as LEB128 numbers: first the
//! milliseconds since the previous entry, shifted left by one, with the lowest bit set if the count follows. Otherwise the count
//! is 1. Units of the same millisecond share an entry.

use crate::counter::{CountBreakdown, Counter};
use crate::moment::{LogTime, Moment};
use crate::quota::Quota;
use crate::strict_window::Pair;

/// The longest entry in bytes: two 64-bit numbers.
const MAX_ENTRY_BYTES: usize = 20;

/// Units admitted in one millisecond.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    at_ms: u64,
    count: u64,
}

/// All admissions of the last window, from the oldest to the newest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SlidingLog {
    /// The oldest entry, if there are two or more.
    oldest: Option<Entry>,
    /// Encoded entries between the oldest and the newest, from `head` on. Bytes before `head` are unused.
    bytes: Vec<u8>,
    head: usize,
    /// The time of the last encoded entry, or of the oldest entry if none is encoded.
    tail_ms: u64,
    /// The newest entry, if there is any.
    newest: Option<Entry>,
    total: u64,
    /// Window of the quota under which the units were counted. Identifies the quota after a change of the policy.
    window_ms: u64,
}

/// A sliding log rolled to a moment.
#[derive(Clone, Copy, Debug)]
pub struct SlidingLogView {
    /// The stamp of an admission, not before the newest entry.
    stamp_ms: u64,
    /// Number of expired units, which are the oldest ones.
    expired: u64,
    used: u64,
    newest_ms: u64,
    /// The time of the oldest live entry.
    oldest_ms: Option<u64>,
    /// The clock stepped far back, so all units count as admitted now.
    is_rebased: bool,
    /// The log has live units of a quota with another window.
    is_changed: bool,
}

impl SlidingLog {
    /// Builds a log from the entries of a store, from the oldest to the newest. An entry older than its predecessor gets the time
    /// of its predecessor.
    pub fn from_entries(window_ms: u64, entries: impl IntoIterator<Item = Pair>) -> Self {
        let mut log = Self { window_ms, ..Self::default() };
        for entry in entries {
            let not_before_ms = log.newest.map_or(0, |newest| newest.at_ms);
            log.append(entry.newest_ms.max(not_before_ms), entry.count);
        }
        log
    }

    /// The window of the quota under which the units were counted.
    pub fn window_ms(&self) -> u64 {
        self.window_ms
    }

    /// Size of the heap allocation.
    pub fn heap_bytes(&self) -> usize {
        self.bytes.capacity()
    }

    /// Bytes by which the heap allocation grows if another entry is added.
    pub fn growth_bytes(&self) -> usize {
        if self.has_capacity() || self.can_compact() { 0 } else { self.growth() }
    }

    fn has_capacity(&self) -> bool {
        self.bytes.capacity() - self.bytes.len() >= MAX_ENTRY_BYTES
    }

    fn can_compact(&self) -> bool {
        self.head * 8 >= self.bytes.len() && self.head >= MAX_ENTRY_BYTES
    }

    fn growth(&self) -> usize {
        MAX_ENTRY_BYTES.max(self.bytes.len() / 4)
    }

    /// The times of the newest entry and of its expiry.
    pub(crate) fn newest_and_expiry_ms(&self) -> (u64, u64) {
        self.newest.map_or((0, 0), |newest| (newest.at_ms, newest.at_ms.saturating_add(self.window_ms)))
    }

    fn entries(&self) -> Entries<'_> {
        Entries {
            oldest: self.oldest,
            bytes: &self.bytes[self.head..],
            at_ms: self.oldest.map_or(0, |entry| entry.at_ms),
            newest: self.newest,
        }
    }

    /// Adds `count` units at `now_ms`, which must not be before the newest entry.
    fn append(&mut self, now_ms: u64, count: u64) {
        if count == 0 {
            return;
        }
        self.total += count;
        match &mut self.newest {
            Some(newest) if newest.at_ms == now_ms => newest.count += count,
            newest => {
                if let Some(before) = newest.replace(Entry { at_ms: now_ms, count }) {
                    self.push(before);
                }
            }
        }
    }

    /// Adds `count` units beyond the limit. They join the newest entry, which gets their time, while the entry before it is at
    /// most an eighth of the window old. Units therefore expire late by at most an eighth of the window, and charges add at most
    /// about twenty entries per window.
    fn append_beyond(&mut self, quota: &Quota, now_ms: u64, count: u64) {
        let is_near = self.oldest.is_some() && now_ms - self.tail_ms <= quota.window_ms() / 8;
        match &mut self.newest {
            Some(newest) if count > 0 && is_near => {
                self.total += count;
                *newest = Entry { at_ms: now_ms, count: newest.count + count };
            }
            _ => self.append(now_ms, count),
        }
    }

    /// Appends an entry that is no longer the newest to the encoded ones.
    fn push(&mut self, entry: Entry) {
        if self.oldest.is_none() {
            self.oldest = Some(entry);
        } else {
            self.reserve_entry();
            let has_count = entry.count != 1;
            write_varint(&mut self.bytes, (entry.at_ms - self.tail_ms) << 1 | u64::from(has_count));
            if has_count {
                write_varint(&mut self.bytes, entry.count);
            }
        }
        self.tail_ms = entry.at_ms;
    }

    /// Ensures capacity for an entry: removes the unused bytes at the front if there are enough, or else grows by a quarter.
    /// Doubling would waste memory, because the limit bounds the size of the log.
    fn reserve_entry(&mut self) {
        if self.has_capacity() {
            return;
        }
        if self.can_compact() {
            self.bytes.drain(..self.head);
            self.head = 0;
        } else {
            self.bytes.reserve_exact(self.growth());
        }
    }

    /// Removes the oldest `units`.
    fn drop_oldest(&mut self, units: u64) {
        let mut left = units.min(self.total);
        self.total -= left;
        while left > 0 {
            let Some(entry) = self.oldest.as_mut().or(self.newest.as_mut()) else { break };
            if left < entry.count {
                entry.count -= left;
                return;
            }
            left -= entry.count;
            self.pop_oldest();
        }
    }

    fn pop_oldest(&mut self) {
        let Some(oldest) = self.oldest.take() else {
            self.newest = None;
            return;
        };
        let mut rest = &self.bytes[self.head..];
        self.oldest = read_entry(&mut rest, oldest.at_ms);
        self.head = self.bytes.len() - rest.len();
        if self.head == self.bytes.len() {
            self.bytes.clear();
            self.head = 0;
        }
    }

    /// Removes all units.
    fn clear(&mut self) {
        (self.oldest, self.newest, self.total) = (None, None, 0);
        self.bytes.clear();
        self.head = 0;
    }
}

impl Counter for SlidingLog {
    type View = SlidingLogView;

    fn empty(quota: &Quota) -> Self {
        Self { window_ms: quota.window_ms(), ..Self::default() }
    }

    fn view(&self, quota: &Quota, now: Moment) -> SlidingLogView {
        let newest_ms = self.newest.map_or(0, |entry| entry.at_ms);
        let Some(LogTime { now_ms, stamp_ms }) = now.log_time(newest_ms, quota.window_ms()) else {
            // The clock stepped far back: all units count as admitted now.
            let newest_ms = now.latest_ms();
            return SlidingLogView {
                stamp_ms: newest_ms,
                expired: 0,
                used: self.total,
                newest_ms,
                oldest_ms: Some(newest_ms),
                is_rebased: true,
                is_changed: false,
            };
        };
        let is_over = |at_ms: u64| at_ms + quota.window_ms() <= now_ms;
        let (mut expired, mut oldest_ms) = (self.total, None);
        if !is_over(newest_ms) {
            expired = 0;
            for entry in self.entries() {
                if !is_over(entry.at_ms) {
                    oldest_ms = Some(entry.at_ms);
                    break;
                }
                expired += entry.count;
            }
        }
        let used = self.total - expired;
        let is_changed = used > 0 && self.window_ms != quota.window_ms();
        SlidingLogView { stamp_ms, expired, used, newest_ms, oldest_ms, is_rebased: false, is_changed }
    }

    fn used(view: &SlidingLogView) -> u64 {
        view.used
    }

    fn breakdown(view: &SlidingLogView) -> CountBreakdown {
        CountBreakdown { previous: 0, current: view.used, oldest_ms: view.oldest_ms }
    }

    fn is_adjusted(view: &SlidingLogView) -> bool {
        view.is_rebased || view.is_changed
    }

    fn retry_at_ms(&self, view: &SlidingLogView, quota: &Quota, cost: u64) -> u64 {
        if view.is_rebased {
            return view.newest_ms + quota.window_ms();
        }
        // The walk starts at the first entry, so the expired units are among the units to free.
        let mut to_free = view.expired + (view.used + cost - quota.limit());
        for entry in self.entries() {
            if entry.count >= to_free {
                return entry.at_ms + quota.window_ms();
            }
            to_free -= entry.count;
        }
        view.newest_ms + quota.window_ms()
    }

    fn reset_at_ms(&self, view: &SlidingLogView, quota: &Quota, spent: u64) -> u64 {
        match (view.used, spent) {
            (0, 0) => 0,
            (_, 0) => view.newest_ms + quota.window_ms(),
            _ => view.stamp_ms + quota.window_ms(),
        }
    }

    fn commit(&mut self, view: &SlidingLogView, quota: &Quota, spent: u64) {
        self.window_ms = quota.window_ms();
        if view.is_rebased || view.used == 0 {
            self.clear();
            self.append(view.stamp_ms, view.used);
        } else {
            self.drop_oldest(view.expired);
        }
        if view.used + spent > quota.limit() {
            self.append_beyond(quota, view.stamp_ms, spent);
        } else {
            self.append(view.stamp_ms, spent);
        }
    }

    /// Removes the oldest units first, for the same reason as a strict window.
    fn refund(&mut self, view: &SlidingLogView, quota: &Quota, amount: u64) {
        self.commit(view, quota, 0);
        self.drop_oldest(amount);
    }
}

struct Entries<'a> {
    oldest: Option<Entry>,
    bytes: &'a [u8],
    at_ms: u64,
    newest: Option<Entry>,
}

impl Iterator for Entries<'_> {
    type Item = Entry;

    fn next(&mut self) -> Option<Entry> {
        if let Some(oldest) = self.oldest.take() {
            return Some(oldest);
        }
        match read_entry(&mut self.bytes, self.at_ms) {
            Some(entry) => {
                self.at_ms = entry.at_ms;
                Some(entry)
            }
            None => self.newest.take(),
        }
    }
}

fn read_entry(bytes: &mut &[u8], before_ms: u64) -> Option<Entry> {
    if bytes.is_empty() {
        return None;
    }
    let head = read_varint(bytes);
    let count = if head & 1 == 1 { read_varint(bytes) } else { 1 };
    Some(Entry { at_ms: before_ms + (head >> 1), count })
}

fn write_varint(bytes: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
}

fn read_varint(bytes: &mut &[u8]) -> u64 {
    let mut value = 0;
    let mut shift = 0;
    while let Some((byte, rest)) = bytes.split_first() {
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            break;
        }
        shift += 7;
    }
    value
}
