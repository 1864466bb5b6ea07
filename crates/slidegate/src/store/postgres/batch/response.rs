//! Results of the functions, and the responses they contain.

use tokio_postgres::SimpleQueryRow;

use super::super::encoded_operation::SLIDING_WINDOW;
use super::super::statement::{UnexpectedFormat, booleans, number, numbers};
use super::arguments::{UniformBatch, next_index};

/// Response to one request.
#[derive(Debug)]
pub(crate) struct Response {
    pub(in super::super) now_ms: u64,
    pub(in super::super) is_allowed: bool,
    /// Record of the key before the decision; empty if there was none.
    pub(in super::super) prior: Vec<i64>,
}

/// Result of `sql/decide.sql` for a batch: one element per request, key by key in the order of `visited`.
#[derive(Debug)]
pub(in super::super) struct BatchResult {
    pub(in super::super) now_ms: u64,
    /// Indexes of the keys, from 1.
    pub(in super::super) visited: Vec<i32>,
    /// `None` if the record would be too large.
    pub(in super::super) allowed: Vec<Option<bool>>,
    /// Prior records of all requests, joined.
    pub(in super::super) prior: Vec<i64>,
    /// Lengths of the prior records.
    pub(in super::super) sizes: Vec<i32>,
}

impl BatchResult {
    pub(in super::super) fn read(row: &SimpleQueryRow) -> Result<Self, UnexpectedFormat> {
        Ok(Self {
            now_ms: number(row, "now_ms")?.ok_or(UnexpectedFormat)?,
            visited: numbers(row, "visited")?.ok_or(UnexpectedFormat)?,
            allowed: booleans(row, "allowed")?,
            prior: numbers(row, "before")?.ok_or(UnexpectedFormat)?,
            sizes: numbers(row, "sizes")?.ok_or(UnexpectedFormat)?,
        })
    }

    /// Reads the result of `sql/decide_uniform.sql`; `None` if the function decided nothing.
    pub(in super::super) fn read_uniform(
        row: &SimpleQueryRow,
        uniform: &UniformBatch,
    ) -> Result<Option<Self>, UnexpectedFormat> {
        let Some(now_ms) = number::<i64>(row, "now_ms")? else { return Ok(None) };
        let existing = numbers::<i32>(row, "existing")?.unwrap_or_default();
        let [allowed, starts, prevs, curs] = ["allowed_counts", "starts", "prevs", "curs"]
            .map(|column| numbers::<i64>(row, column).map(Option::unwrap_or_default));
        let records =
            existing.into_iter().zip(allowed?).zip(starts?.into_iter().zip(prevs?.into_iter().zip(curs?)));

        let keys = uniform.counts.len();
        let mut result = Self {
            now_ms: now_ms.cast_unsigned(),
            visited: Vec::with_capacity(keys),
            allowed: Vec::with_capacity(keys),
            prior: Vec::with_capacity(6 * keys),
            sizes: Vec::with_capacity(keys),
        };
        let mut is_new = vec![true; keys];
        for ((key, allowed), (start, (prev, cur))) in records {
            let Ok(key) = usize::try_from(key - 1) else { continue };
            if let Some(is_new) = is_new.get_mut(key) {
                *is_new = false;
                result.push_checks(uniform, &KeyChecks { key, allowed, start, prev, cur });
            }
        }
        let start = now_ms - now_ms % uniform.window_ms;
        for key in (0..keys).filter(|key| is_new[*key]) {
            let allowed = uniform.limit / uniform.cost;
            result.push_checks(uniform, &KeyChecks { key, allowed, start, prev: 0, cur: 0 });
        }
        Ok(Some(result))
    }

    /// Adds the checks of one key, each with the record that the one before has left.
    fn push_checks(&mut self, uniform: &UniformBatch, checks: &KeyChecks) {
        self.visited.push(next_index(checks.key));
        for number in 0..i64::from(uniform.counts[checks.key]) {
            let spent = uniform.cost * number.min(checks.allowed);
            self.allowed.push(Some(number < checks.allowed));
            let cur = checks.cur + spent;
            self.prior.extend([SLIDING_WINDOW, uniform.window_ms, 3, checks.start, checks.prev, cur]);
            self.sizes.push(6);
        }
    }
}

/// Equal checks of one key. The first `allowed` of them are allowed.
struct KeyChecks {
    key: usize,
    allowed: i64,
    /// Record before the first check.
    start: i64,
    prev: i64,
    cur: i64,
}
