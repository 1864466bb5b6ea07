//! An operation as the script reads it: everything but the key.

use slidegate_core::{Algorithm, Anchor, Quota, Verb};

use crate::store::Operation;
use crate::store::remote::MOST_COST;

/// Below these the script decides in line, with a record of 12 bytes.
const SIMPLE_LIMIT: u64 = 1 << 16;
const SIMPLE_WINDOW_MS: u64 = (1 << 24) * 1000;

/// One argument of the script.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Description(Vec<u8>);

impl Description {
    /// `slack_ms` is how much longer than needed the record is to live. If it `is_told`, whoever listens hears what is
    /// given back.
    pub(super) fn new(operation: &Operation<'_>, slack_ms: u64, is_told: bool) -> Self {
        let quotas = operation.check.policy.quotas();
        let is_simple = is_simple(operation.verb, quotas);
        let mut bytes = Vec::with_capacity(16 + 21 * quotas.len());
        bytes.extend([u8::from(is_simple), usual_window(quotas), verb_code(operation.verb, is_told)]);
        put(&mut bytes, operation.check.cost.min(MOST_COST), 7);
        // For how long the record lives: a simple one altogether, others beyond what the script computes.
        let life_ms = if is_simple { 2 * quotas[0].window_ms() + slack_ms } else { slack_ms };
        put(&mut bytes, life_ms, 6);
        for quota in quotas {
            bytes.push(algorithm_code(quota.algorithm()));
            put(&mut bytes, quota.limit(), 7);
            put(&mut bytes, quota.window_ms(), 5);
            put(&mut bytes, quota.capacity(), 7);
            bytes.push(option_code(quota));
        }
        Self(bytes)
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.0
    }
}

fn is_simple(verb: Verb, quotas: &[Quota]) -> bool {
    let [quota] = quotas else { return false };
    matches!(verb, Verb::Check | Verb::Peek)
        && quota.algorithm() == Algorithm::SlidingWindow
        && quota.anchor() == Anchor::Epoch
        && quota.limit() < SIMPLE_LIMIT
        && quota.window_ms() < SIMPLE_WINDOW_MS
        && quota.window_ms().is_multiple_of(1000)
}

/// How much of the server's time an operation may take, in that of an ordinary one: a denial may walk a whole log.
pub(super) fn weight(quotas: &[Quota]) -> usize {
    let of = |quota: &Quota| match quota.algorithm() {
        Algorithm::SlidingLog => (quota.limit() / 1024).min(64) as usize,
        _ => 0,
    };
    1 + quotas.iter().map(of).sum::<usize>()
}

/// Windows in seconds that are so usual that a record names them by two digits. The script has the same list.
pub(super) const USUAL_WINDOWS: [u64; 26] = [
    1, 2, 3, 5, 10, 15, 20, 30, 60, 120, 300, 600, 900, 1200, 1800, 3600, 7200, 10800, 14400, 21600, 28800,
    43200, 86400, 172_800, 604_800, 2_592_000,
];

/// The place in the list, from 1 on; 0 if it is not there.
fn usual_window(quotas: &[Quota]) -> u8 {
    match quotas {
        [quota] if quota.algorithm() == Algorithm::SlidingWindow && quota.anchor() == Anchor::Epoch => {
            let is_it = |seconds: &u64| seconds * 1000 == quota.window_ms();
            USUAL_WINDOWS.iter().position(is_it).map_or(0, |place| place as u8 + 1)
        }
        _ => 0,
    }
}

fn verb_code(verb: Verb, is_told: bool) -> u8 {
    match (verb, is_told) {
        (Verb::Check, true) => 1,
        (Verb::Check, false) => 7,
        (Verb::Peek, _) => 2,
        (Verb::Refund, true) => 3,
        (Verb::Reset, true) => 4,
        (Verb::Refund, false) => 5,
        (Verb::Reset, false) => 6,
        (Verb::Charge, true) => 8,
        (Verb::Charge, false) => 9,
        (Verb::Block, true) => 10,
        (Verb::Block, false) => 11,
    }
}

fn algorithm_code(algorithm: Algorithm) -> u8 {
    match algorithm {
        Algorithm::SlidingWindow => 1,
        Algorithm::StrictWindow => 2,
        Algorithm::SlidingLog => 3,
        Algorithm::FixedWindow => 4,
        Algorithm::TokenBucket => 5,
    }
}

fn option_code(quota: &Quota) -> u8 {
    match quota.algorithm() {
        Algorithm::StrictWindow => quota.slots(),
        _ => u8::from(quota.anchor() == Anchor::FirstRequest),
    }
}

/// The lowest `width` bytes of `value`, the highest first.
fn put(bytes: &mut Vec<u8>, value: u64, width: usize) {
    bytes.extend_from_slice(&value.to_be_bytes()[8 - width..]);
}
