//! Encoding of an operation for the script.

use slidegate_core::{Algorithm, Anchor, Quota, Verb};

use crate::store::Operation;
use crate::store::remote::MAX_COST;

/// Limits below which the script decides a sliding window in line, with a record of at most 12 bytes.
const SIMPLE_LIMIT: u64 = 1 << 16;
const SIMPLE_WINDOW_MS: u64 = (1 << 24) * 1000;

/// Operation without its key, as one argument of the script.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct EncodedOperation(Vec<u8>);

impl EncodedOperation {
    /// Encodes an operation. `slack_ms` extends the record's time to live. With `is_published`, the script publishes an
    /// invalidation whenever it lowers a count or changes a limit.
    pub(super) fn new(operation: &Operation<'_>, slack_ms: u64, is_published: bool) -> Self {
        let quotas = operation.check.policy.quotas();
        let is_simple = is_simple(operation.verb, quotas);
        let mut bytes = Vec::with_capacity(16 + 21 * quotas.len());
        bytes.extend([u8::from(is_simple), usual_window(quotas), verb_code(operation.verb, is_published)]);
        put(&mut bytes, operation.check.cost.min(MAX_COST), 7);
        // Time to live: the whole of it for a simple operation, else an addition to what the script computes.
        let ttl_ms = if is_simple { 2 * quotas[0].window_ms() + slack_ms } else { slack_ms };
        put(&mut bytes, ttl_ms, 6);
        for quota in quotas {
            bytes.push(quota.algorithm().code());
            put(&mut bytes, quota.limit(), 7);
            put(&mut bytes, quota.window_ms(), 5);
            put(&mut bytes, quota.capacity(), 7);
            bytes.push(quota.option_code());
        }
        Self(bytes)
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.0
    }
}

fn is_simple(verb: Verb, quotas: &[Quota]) -> bool {
    let [quota] = quotas else { return false };
    verb.is_check_or_peek()
        && quota.algorithm() == Algorithm::SlidingWindow
        && quota.anchor() == Anchor::Epoch
        && quota.limit() < SIMPLE_LIMIT
        && quota.window_ms() < SIMPLE_WINDOW_MS
        && quota.window_ms().is_multiple_of(1000)
}

/// Returns the server time that an operation may take, in units of an ordinary one. A denial may read a whole log.
pub(super) fn weight(quotas: &[Quota]) -> usize {
    let extra = |quota: &Quota| match quota.algorithm() {
        Algorithm::SlidingLog => (quota.limit() / 1024).min(64) as usize,
        _ => 0,
    };
    1 + quotas.iter().map(extra).sum::<usize>()
}

/// Windows, in seconds, that a decimal record encodes in two digits. The script has the same list.
pub(super) const USUAL_WINDOWS: [u64; 26] = [
    1, 2, 3, 5, 10, 15, 20, 30, 60, 120, 300, 600, 900, 1200, 1800, 3600, 7200, 10800, 14400, 21600, 28800,
    43200, 86400, 172_800, 604_800, 2_592_000,
];

/// Returns the position in [`USUAL_WINDOWS`], counted from 1; 0 if the policy has no such window.
fn usual_window(quotas: &[Quota]) -> u8 {
    match quotas {
        [quota] if quota.algorithm() == Algorithm::SlidingWindow && quota.anchor() == Anchor::Epoch => {
            let is_window = |seconds: &u64| seconds * 1000 == quota.window_ms();
            USUAL_WINDOWS.iter().position(is_window).map_or(0, |place| place as u8 + 1)
        }
        _ => 0,
    }
}

/// Returns the code of a verb. Operations that publish no invalidations have the highest bit set.
fn verb_code(verb: Verb, is_published: bool) -> u8 {
    verb.code() | if is_published { 0 } else { 0x80 }
}

/// Appends the lowest `width` bytes of `value`, in big-endian order.
fn put(bytes: &mut Vec<u8>, value: u64, width: usize) {
    bytes.extend_from_slice(&value.to_be_bytes()[8 - width..]);
}
