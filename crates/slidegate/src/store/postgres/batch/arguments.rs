//! Arguments of the functions that decide a batch.

use super::super::name::Name;

/// Arguments of `sql/decide_uniform.sql`, which decides a batch of equal checks by one sliding window.
#[derive(Debug)]
pub(in super::super) struct UniformBatch {
    /// Number of checks of each key.
    pub(in super::super) counts: Vec<i32>,
    pub(in super::super) cost: i64,
    pub(in super::super) limit: i64,
    pub(in super::super) window_ms: i64,
}

/// Arguments of `sql/decide.sql`.
#[derive(Debug, Default)]
pub(in super::super) struct Arguments {
    pub(in super::super) names: Vec<Name>,
    pub(in super::super) from_op: Vec<i32>,
    pub(in super::super) which: Vec<i32>,
    pub(in super::super) ops: Vec<i64>,
    pub(in super::super) op_at: Vec<i32>,
}

/// Returns the index, from 1, of the next element of an array with `len` elements.
pub(super) fn next_index(len: usize) -> i32 {
    i32::try_from(len + 1).unwrap_or(i32::MAX)
}
