//! Replies of commands for keys.

use slidegate::{Decision, Source};
use slidegate_engine::{Rejection, RejectionKind};

/// Reply of `TTL` for a key without a count.
const NO_KEY: i64 = -2;

/// Number of existing keys among those of one command, or the first error.
#[derive(Debug, Default)]
pub(super) struct KeyCount {
    existing: i64,
    rejection: Option<Rejection>,
}

impl KeyCount {
    /// Counts one key.
    pub(super) fn add(&mut self, exists: Result<bool, Rejection>) {
        match exists {
            Ok(exists) => self.existing += i64::from(exists),
            Err(rejection) => drop(self.rejection.get_or_insert(rejection)),
        }
    }

    /// Returns the number, and restarts the count for the next command.
    pub(super) fn take(&mut self) -> Result<i64, Rejection> {
        let Self { existing, rejection } = std::mem::take(self);
        rejection.map_or(Ok(existing), Err)
    }
}

/// Returns whether any unit of a key is counted, from the decision of a peek.
pub(super) fn exists(decision: &Decision) -> Result<bool, Rejection> {
    time_to_live_ms(decision).map(|ms| ms > 0)
}

/// Returns the time until no unit of a key is counted, from the decision of a peek. A fallback does not know it.
fn time_to_live_ms(decision: &Decision) -> Result<u64, Rejection> {
    match decision.source() {
        Source::Fallback(reason) => {
            let kind = RejectionKind::StoreUnavailable { is_transient: true, may_have_counted: false };
            Err(Rejection::new(kind, format!("the store did not decide ({})", reason.name())))
        }
        _ => Ok(decision.expires_after_ms()),
    }
}

/// Returns the reply of `TTL`, rounded up.
pub(super) fn time_to_live(decision: &Decision, unit_ms: u64) -> Result<i64, Rejection> {
    let units = time_to_live_ms(decision)?.div_ceil(unit_ms);
    Ok(if units == 0 { NO_KEY } else { i64::try_from(units).unwrap_or(i64::MAX) })
}
