//! Decoding of a key's record: the states of all quotas, one after another. The script writes records; its comments
//! document the format of each state.

use slidegate_core::{
    Counter, FixedWindow, Pair, Quota, SlidingLog, SlidingWindow, State, StrictWindow, TokenBucket,
};

use super::encoded_operation::USUAL_WINDOWS;
use crate::store::remote::PriorState;

/// Time from which decimal records number their windows.
const Y2020_MS: u64 = 1_577_836_800_000;

/// Error of a record in a format that this version does not know.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Unreadable;

/// Tag of a block.
const BLOCK_TAG: u8 = 8;

/// Decodes a binary record.
pub(super) fn decode(record: &[u8], quotas: &[Quota]) -> Result<PriorState, Unreadable> {
    let mut reader = Reader { rest: record };
    let states = quotas.iter().map(|quota| reader.state(quota)).collect::<Result<Vec<_>, _>>()?;
    let mut prior = PriorState::from_states(states);
    if let Some((&BLOCK_TAG, block)) = reader.rest.split_first() {
        reader.rest = block;
        prior.blocked_until_ms = reader.number(6)?;
    }
    if reader.rest.is_empty() { Ok(prior) } else { Err(Unreadable) }
}

/// Decodes a decimal record, which holds the sliding window of a policy with a single quota.
pub(super) fn decode_number(digits: u64, quotas: &[Quota]) -> Result<PriorState, Unreadable> {
    let [quota] = quotas else { return Err(Unreadable) };
    let (number, usual) = (digits / 10_000_000_000, digits / 100_000_000 % 100);
    let (prev, cur) = (digits / 10_000 % 10_000, digits % 10_000);
    let place = usize::try_from(usual).ok().and_then(|usual| usual.checked_sub(1)).ok_or(Unreadable)?;
    let window_ms = USUAL_WINDOWS.get(place).ok_or(Unreadable)? * 1000;
    let start_ms = (number + Y2020_MS / window_ms) * window_ms;
    let state = State::SlidingWindow(SlidingWindow { start_ms, window_ms, prev, cur });
    if state.algorithm() == Some(quota.algorithm()) {
        Ok(PriorState::from_states(vec![state]))
    } else {
        Err(Unreadable)
    }
}

struct Reader<'a> {
    rest: &'a [u8],
}

impl Reader<'_> {
    fn state(&mut self, quota: &Quota) -> Result<State, Unreadable> {
        let state = match self.number(1)? {
            0 => State::empty(quota),
            1 => {
                State::SlidingWindow(self.window(&Widths { time: 4, window: 3, count: 2, unit_ms: 1000 })?)
            }
            2 => State::SlidingWindow(self.window(&Widths { time: 6, window: 5, count: 7, unit_ms: 1 })?),
            3 => State::FixedWindow(FixedWindow {
                start_ms: self.number(6)?,
                window_ms: self.number(5)?,
                cur: self.number(7)?,
            }),
            4 => State::TokenBucket(self.bucket()?),
            5 => State::StrictWindow(self.pairs(4, 2)?),
            6 => State::StrictWindow(self.pairs(5, 7)?),
            7 => State::SlidingLog(Box::new(self.log()?)),
            _ => return Err(Unreadable),
        };
        if state.algorithm() == Some(quota.algorithm()) { Ok(state) } else { Err(Unreadable) }
    }

    fn window(&mut self, widths: &Widths) -> Result<SlidingWindow, Unreadable> {
        Ok(SlidingWindow {
            start_ms: self.number(widths.time)? * widths.unit_ms,
            window_ms: self.number(widths.window)? * widths.unit_ms,
            prev: self.number(widths.count)?,
            cur: self.number(widths.count)?,
        })
    }

    fn bucket(&mut self) -> Result<TokenBucket, Unreadable> {
        let (at_ms, window_ms, limit) = (self.number(6)?, self.number(5)?, self.number(7)?);
        let capacity = self.number(7)?;
        let (tokens, rest) = (self.number(7)?, self.number(5)?);
        let debt = u128::from(tokens) * u128::from(window_ms) + u128::from(rest);
        Ok(TokenBucket { debt, at_ms, window_ms, limit, capacity })
    }

    fn pairs(&mut self, age_width: usize, count_width: usize) -> Result<StrictWindow, Unreadable> {
        let (window_ms, newest_ms, pairs) = (self.number(5)?, self.number(6)?, self.number(1)?);
        let pairs = (0..pairs)
            .map(|_| {
                let older_ms = self.number(age_width)?;
                let newest_ms = newest_ms.checked_sub(older_ms).ok_or(Unreadable)?;
                Ok(Pair { newest_ms, count: self.number(count_width)? })
            })
            .collect::<Result<Vec<_>, _>>()?;
        Ok(StrictWindow::from_pairs(window_ms, pairs))
    }

    fn log(&mut self) -> Result<SlidingLog, Unreadable> {
        let (window_ms, _total) = (self.number(5)?, self.number(7)?);
        let newest = Pair { newest_ms: self.number(6)?, count: self.number(7)? };
        let (base_ms, _tail_ms) = (self.number(6)?, self.number(6)?);
        let older_bytes = self.number(3)? as usize;
        let mut older = Reader { rest: self.take(older_bytes)? };
        let (mut entries, mut at_ms) = (Vec::new(), base_ms);
        while !older.rest.is_empty() {
            let head = older.varint()?;
            at_ms += head >> 1;
            entries.push(Pair { newest_ms: at_ms, count: if head & 1 == 1 { older.varint()? } else { 1 } });
        }
        entries.push(newest);
        if entries.is_sorted_by_key(|entry| entry.newest_ms) {
            Ok(SlidingLog::from_entries(window_ms, entries))
        } else {
            Err(Unreadable)
        }
    }

    /// Reads `width` bytes in big-endian order.
    fn number(&mut self, width: usize) -> Result<u64, Unreadable> {
        Ok(self.take(width)?.iter().fold(0, |value, byte| value << 8 | u64::from(*byte)))
    }

    fn varint(&mut self) -> Result<u64, Unreadable> {
        let mut value = 0;
        for shift in (0..56).step_by(7) {
            let digit = self.number(1)?;
            value |= (digit & 0x7F) << shift;
            if digit < 0x80 {
                return Ok(value);
            }
        }
        Err(Unreadable)
    }
}

impl<'a> Reader<'a> {
    fn take(&mut self, bytes: usize) -> Result<&'a [u8], Unreadable> {
        let (taken, rest) = self.rest.split_at_checked(bytes).ok_or(Unreadable)?;
        self.rest = rest;
        Ok(taken)
    }
}

/// Format of a sliding window: the byte widths of its fields, and the unit of its times.
struct Widths {
    time: usize,
    window: usize,
    count: usize,
    unit_ms: u64,
}
