//! Reason of a decision without the store, by the error of the store.

use slidegate_core::FallbackReason;

use crate::error::StoreError;

/// Returns the reason to report in a decision that replaces this error.
pub(super) fn fallback_reason(error: &StoreError) -> FallbackReason {
    if error.is_full() {
        FallbackReason::Full
    } else if error.is_late() {
        FallbackReason::Timeout
    } else if error.is_transient() {
        FallbackReason::Unavailable
    } else {
        FallbackReason::Refused
    }
}
