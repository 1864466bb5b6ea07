//! Invalidation of cached denials by requests that pass through the cache.

use slidegate_core::{Policy, Verb};

use super::metrics::DropReason;
use super::table::{KeyHash, Table};

/// Returns the drop reason unless the verb never shortens a denial.
pub(super) fn invalidation_reason(verb: Verb) -> Option<DropReason> {
    match verb {
        Verb::Check | Verb::Peek | Verb::Charge => None,
        Verb::Refund => Some(DropReason::Refund),
        // A block replaces an earlier block, which may expire later.
        _ => Some(DropReason::Reset),
    }
}

/// Guard of a refund, reset or block that is in flight.
///
/// The denial of the key is dropped when the guard is created and again when it is dropped, whether the request was
/// completed or abandoned. A denial that the store decided before the refund belongs to a request that was sent before
/// the refund completed. If its response arrives before the guard ends, the second drop removes it. If it arrives
/// later, the epoch has changed and it is not stored.
pub(super) struct KeyInvalidation<'a> {
    table: &'a Table,
    key_hash: KeyHash,
    reason: DropReason,
}

impl<'a> KeyInvalidation<'a> {
    pub(super) fn begin(table: &'a Table, key_hash: KeyHash, reason: DropReason) -> Self {
        table.invalidate(key_hash, reason);
        Self { table, key_hash, reason }
    }

    pub(super) fn key_hash(&self) -> KeyHash {
        self.key_hash
    }
}

impl Drop for KeyInvalidation<'_> {
    fn drop(&mut self) {
        self.table.invalidate(self.key_hash, self.reason);
    }
}

/// Guard of a policy that is being reset. Works for all keys of the policy as [`KeyInvalidation`] does for
/// one.
pub(super) struct PolicyInvalidation<'a> {
    table: &'a Table,
    policy: &'a Policy,
}

impl<'a> PolicyInvalidation<'a> {
    pub(super) fn begin(table: &'a Table, policy: &'a Policy) -> Self {
        table.invalidate_policy(policy);
        Self { table, policy }
    }
}

impl Drop for PolicyInvalidation<'_> {
    fn drop(&mut self) {
        self.table.invalidate_policy(self.policy);
    }
}
