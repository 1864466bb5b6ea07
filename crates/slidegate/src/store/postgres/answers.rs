//! What the functions answer.

use std::collections::BTreeSet;

use tokio_postgres::{Error, Row};

use super::batch::{Alike, Name};

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
    pub(super) fn read(row: &Row) -> Result<Self, Error> {
        Ok(Self {
            now_ms: row.try_get::<_, i64>("now_ms")?.cast_unsigned(),
            visited: row.try_get("visited")?,
            allowed: row.try_get("allowed")?,
            before: row.try_get("before")?,
            sizes: row.try_get("sizes")?,
        })
    }

    /// The same of what `sql/alike.sql` says; `None` if it has done nothing.
    pub(super) fn read_alike(row: &Row, names: &[Name], alike: Alike) -> Result<Option<Self>, Error> {
        let Some(now_ms) = row.try_get::<_, Option<i64>>("now_ms")? else { return Ok(None) };
        let held: Vec<Name> = row.try_get("names")?;
        let allowed: Vec<bool> = row.try_get("allowed")?;
        let [starts, prevs, curs] =
            ["starts", "prevs", "curs"].map(|column| row.try_get::<_, Vec<i64>>(column));
        let (starts, prevs, curs) = (starts?, prevs?, curs?);
        let mut answers = Self {
            now_ms: now_ms.cast_unsigned(),
            visited: Vec::with_capacity(names.len()),
            allowed: allowed.into_iter().map(Some).collect(),
            before: Vec::with_capacity(6 * held.len()),
            sizes: vec![6; held.len()],
        };
        for ((start, prev), cur) in starts.into_iter().zip(prevs).zip(curs) {
            answers.before.extend([1, alike.window_ms, 3, start, prev, cur]);
        }
        let held: BTreeSet<Name> = held.into_iter().collect();
        let (known, new): (Vec<usize>, Vec<usize>) =
            (0..names.len()).partition(|number| held.contains(&names[*number]));
        answers.visited.extend(known.into_iter().chain(new).map(place));
        answers.allowed.resize(names.len(), Some(alike.cost <= alike.limit));
        answers.sizes.resize(names.len(), 0);
        Ok(Some(answers))
    }
}

/// Where the next one goes in an array of so many, counted from 1. A batch is small.
pub(super) fn place(len: usize) -> i32 {
    i32::try_from(len + 1).unwrap_or(i32::MAX)
}
