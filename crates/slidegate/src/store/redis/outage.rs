//! Outage of a server: from the first failure to the first write after it.

use crate::error::StoreError;
use crate::store::backoff::Backoff;

/// Outage of a server, if there is one.
#[derive(Default)]
pub(super) struct Outage {
    backoff: Backoff,
    is_logged: bool,
}

impl Outage {
    /// Records a failure. Returns the pause before the next connection attempt.
    pub(super) fn record(&mut self, error: &StoreError) -> u64 {
        let pause_ms = self.backoff.next_ms();
        // One warning per outage, not per attempt.
        if self.is_logged {
            tracing::debug!(%error, pause_ms, "redis is still unavailable");
        } else if error.is_transient() {
            tracing::warn!(%error, "redis is unavailable; reconnecting");
        } else {
            tracing::warn!(%error, "redis cannot be used; check the store's URL and the server's configuration");
        }
        self.is_logged = true;
        pause_ms
    }

    /// Ends the outage. Only a write proves its end: a demoted primary accepts logins and denies requests.
    pub(super) fn end(&mut self, server: &str) {
        self.backoff = Backoff::default();
        if self.is_logged {
            self.is_logged = false;
            tracing::info!(server, "redis is available again");
        }
    }
}
