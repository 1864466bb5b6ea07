//! What the functions answer.

use tokio_postgres::SimpleQueryRow;

use super::batch::{Alike, SLIDING_WINDOW};
use super::statement::{Unreadable, number, numbers, truths};

/// What `sql/decide.sql` says: key by key, in the order in which they were visited.
#[derive(Debug)]
pub(super) struct Answers {
    pub(super) now_ms: u64,
    pub(super) visited: Vec<i32>,
    /// Null if there is no room.
    pub(super) allowed: Vec<Option<bool>>,
    pub(super) before: Vec<i64>,
    pub(super) sizes: Vec<i32>,
}

impl Answers {
    pub(super) fn read(row: &SimpleQueryRow) -> Result<Self, Unreadable> {
        Ok(Self {
            now_ms: number(row, "now_ms")?.ok_or(Unreadable)?,
            visited: numbers(row, "visited")?.ok_or(Unreadable)?,
            allowed: truths(row, "allowed")?,
            before: numbers(row, "before")?.ok_or(Unreadable)?,
            sizes: numbers(row, "sizes")?.ok_or(Unreadable)?,
        })
    }

    /// The same of what `sql/alike.sql` says; `None` if it has done nothing.
    pub(super) fn read_alike(row: &SimpleQueryRow, alike: &Alike) -> Result<Option<Self>, Unreadable> {
        let Some(now_ms) = number::<i64>(row, "now_ms")? else { return Ok(None) };
        let held = numbers::<i32>(row, "held")?.unwrap_or_default();
        let [granted, starts, prevs, curs] = ["granted", "starts", "prevs", "curs"]
            .map(|column| numbers::<i64>(row, column).map(Option::unwrap_or_default));
        let known =
            held.into_iter().zip(granted?).zip(starts?.into_iter().zip(prevs?.into_iter().zip(curs?)));

        let keys = alike.counts.len();
        let mut answers = Self {
            now_ms: now_ms.cast_unsigned(),
            visited: Vec::with_capacity(keys),
            allowed: Vec::with_capacity(keys),
            before: Vec::with_capacity(6 * keys),
            sizes: Vec::with_capacity(keys),
        };
        let mut is_new = vec![true; keys];
        for ((key, granted), (start, (prev, cur))) in known {
            let Ok(key) = usize::try_from(key - 1) else { continue };
            if let Some(is_new) = is_new.get_mut(key) {
                *is_new = false;
                answers.push_run(alike, &Run { key, granted, start, prev, cur });
            }
        }
        let start = now_ms - now_ms % alike.window_ms;
        for key in (0..keys).filter(|key| is_new[*key]) {
            let granted = alike.limit / alike.cost;
            answers.push_run(alike, &Run { key, granted, start, prev: 0, cur: 0 });
        }
        Ok(Some(answers))
    }

    /// The checks of one key, one after the other.
    fn push_run(&mut self, alike: &Alike, run: &Run) {
        self.visited.push(place(run.key));
        for number in 0..i64::from(alike.counts[run.key]) {
            let spent = alike.cost * number.min(run.granted);
            self.allowed.push(Some(number < run.granted));
            self.before.extend([SLIDING_WINDOW, alike.window_ms, 3, run.start, run.prev, run.cur + spent]);
            self.sizes.push(6);
        }
    }
}

/// The same check of one key, any number of times: so many of them are allowed, beginning with this.
struct Run {
    key: usize,
    granted: i64,
    start: i64,
    prev: i64,
    cur: i64,
}

/// Where the next one goes in an array of so many, counted from 1. A batch is small.
pub(super) fn place(len: usize) -> i32 {
    i32::try_from(len + 1).unwrap_or(i32::MAX)
}
