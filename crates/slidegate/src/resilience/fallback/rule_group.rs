//! Policies that share a failure rule, and with it a breaker. Policies with different budgets need different breakers:
//! the timeouts of one budget do not indicate a failure under a longer one.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use slidegate_core::{FallbackReason, Policy};

use crate::clock::Clock;
use crate::error::StoreError;
use crate::resilience::breaker::{Breaker, BreakerState, Permit};
use crate::resilience::rules::FailureRule;
use crate::resilience::telemetry;

/// Minimum time between two log lines about the start or end of the fallback.
const LOG_INTERVAL_MS: u64 = 1000;

pub(super) struct RuleGroup<C: Clock> {
    pub(super) rule: FailureRule,
    pub(super) breaker: Breaker<C>,
    /// The store's most recent error.
    last_error: Mutex<Option<StoreError>>,
    is_falling_back: AtomicBool,
    logged_at_ms: AtomicU64,
}

impl<C: Clock> RuleGroup<C> {
    pub(super) fn new(rule: FailureRule, breaker: Breaker<C>) -> Self {
        Self {
            rule,
            breaker,
            last_error: Mutex::default(),
            is_falling_back: AtomicBool::new(false),
            logged_at_ms: AtomicU64::new(0),
        }
    }

    /// Returns the error for requests that the breaker rejects.
    pub(super) fn breaker_error(&self) -> StoreError {
        let last = self.last_error.lock().unwrap_or_else(PoisonError::into_inner);
        let error = last.as_ref().map_or_else(|| "the store has failed".to_owned(), ToString::to_string);
        StoreError::transient(format!("{error}; the breaker is open and sends no requests to the store"))
    }

    /// Settles the permit of a request and keeps its error, if any, for [`breaker_error`](Self::breaker_error).
    pub(super) fn settle(&self, permit: Permit<'_, C>, error: Option<&StoreError>) {
        if let Some(error) = error {
            self.set_last_error(error);
        }
        permit.settled(error.is_some());
    }

    pub(super) fn set_last_error(&self, error: &StoreError) {
        *self.last_error.lock().unwrap_or_else(PoisonError::into_inner) = Some(error.clone());
    }

    /// Reports a decision for `policy` that was made without the store.
    pub(super) fn report_fallback(&self, policy: &Policy, reason: FallbackReason, now_ms: u64) {
        telemetry::count_fallback(policy, self.rule.on_failure, reason);
        self.set_falling_back(true, now_ms, || {
            let last = self.last_error.lock().unwrap_or_else(PoisonError::into_inner).clone();
            telemetry::log_fallback_start(policy, self.rule.on_failure, reason, last.as_ref());
        });
    }

    /// Reports a decision for `policy` that the store made.
    pub(super) fn report_decision(&self, policy: &Policy, now_ms: u64) {
        // While the breaker is recovering, other requests still fall back.
        if self.is_falling_back.load(Ordering::Relaxed) && self.breaker.state() == BreakerState::Closed {
            self.set_falling_back(false, now_ms, || telemetry::log_fallback_end(policy));
        }
    }

    /// Changes `is_falling_back` and calls `log`, unless the last change was less than the log interval ago. A skipped
    /// change is made by a later call.
    fn set_falling_back(&self, is_falling_back: bool, now_ms: u64, log: impl FnOnce()) {
        if self.is_falling_back.load(Ordering::Relaxed) == is_falling_back {
            return;
        }
        let logged_at_ms = self.logged_at_ms.load(Ordering::Relaxed);
        let is_too_soon = now_ms.saturating_sub(logged_at_ms) < LOG_INTERVAL_MS;
        let order = Ordering::Relaxed;
        // Of several threads that see the change at once, one logs it.
        if !is_too_soon && self.logged_at_ms.compare_exchange(logged_at_ms, now_ms, order, order).is_ok() {
            self.is_falling_back.store(is_falling_back, order);
            log();
        }
    }
}
