//! Reason of a decision without the store, by the error of the store.

use slidegate_core::Reason;

use crate::error::StoreError;

/// Returns the reason to report in a decision that replaces this error.
pub(super) fn fallback_reason(error: &StoreError) -> Reason {
    if error.is_full() {
        Reason::Full
    } else if error.is_late() {
        Reason::Timeout
    } else if error.is_transient() {
        Reason::Unavailable
    } else {
        Reason::Refused
    }
}
