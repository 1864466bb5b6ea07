//! Decoding of records. `sql/step.sql` describes their format.

use slidegate_core::{
    Counter, FixedWindow, Pair, Policy, Quota, SlidingLog, SlidingWindow, State, StrictWindow, TokenBucket,
};

use super::statement::UnexpectedFormat;
use crate::store::remote::PriorState;

/// Decodes the record that a decision under `policy` was based on.
pub(super) fn read(record: &[i64], policy: &Policy) -> Result<PriorState, UnexpectedFormat> {
    if record.is_empty() {
        return Ok(PriorState::empty(policy));
    }
    let mut rest = record;
    let states =
        policy.quotas().iter().map(|quota| read_state(&mut rest, quota)).collect::<Result<_, _>>()?;
    let prior = PriorState::from_states(states);
    match rest {
        [] => Ok(prior),
        // A block.
        [6, 0, 1, until] => Ok(PriorState { blocked_until_ms: whole(*until)?, ..prior }),
        _ => Err(UnexpectedFormat),
    }
}

fn read_state(rest: &mut &[i64], quota: &Quota) -> Result<State, UnexpectedFormat> {
    let (tag, after) = rest.split_first().ok_or(UnexpectedFormat)?;
    if *tag == 0 {
        *rest = after;
        return Ok(State::empty(quota));
    }
    let [window, length, after @ ..] = after else { return Err(UnexpectedFormat) };
    let length = usize::try_from(*length).map_err(|_| UnexpectedFormat)?;
    let (numbers, after) = after.split_at_checked(length).ok_or(UnexpectedFormat)?;
    *rest = after;
    let window_ms = whole(*window)?;
    let state = match (tag, numbers) {
        (1, [start, prev, cur]) => State::SlidingWindow(SlidingWindow {
            start_ms: whole(*start)?,
            window_ms,
            prev: whole(*prev)?,
            cur: whole(*cur)?,
        }),
        (2, pairs) => State::StrictWindow(StrictWindow::from_pairs(window_ms, read_pairs(pairs)?)),
        (3, pairs) => State::SlidingLog(Box::new(SlidingLog::from_entries(window_ms, read_pairs(pairs)?))),
        (4, [start, cur]) => {
            State::FixedWindow(FixedWindow { start_ms: whole(*start)?, window_ms, cur: whole(*cur)? })
        }
        (5, [at, tokens, left, limit, capacity]) => State::TokenBucket(TokenBucket {
            debt: u128::from(whole(*tokens)?) * u128::from(window_ms) + u128::from(whole(*left)?),
            at_ms: whole(*at)?,
            window_ms,
            limit: whole(*limit)?,
            capacity: whole(*capacity)?,
        }),
        _ => return Err(UnexpectedFormat),
    };
    if state.algorithm() == Some(quota.algorithm()) { Ok(state) } else { Err(UnexpectedFormat) }
}

fn read_pairs(numbers: &[i64]) -> Result<Vec<Pair>, UnexpectedFormat> {
    let pairs = numbers
        .chunks(2)
        .map(|pair| match pair {
            [time, count] => Ok(Pair { newest_ms: whole(*time)?, count: whole(*count)? }),
            _ => Err(UnexpectedFormat),
        })
        .collect::<Result<Vec<_>, _>>()?;
    if pairs.is_sorted_by_key(|pair| pair.newest_ms) { Ok(pairs) } else { Err(UnexpectedFormat) }
}

fn whole(number: i64) -> Result<u64, UnexpectedFormat> {
    u64::try_from(number).map_err(|_| UnexpectedFormat)
}
