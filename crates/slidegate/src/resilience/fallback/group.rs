//! Policies that share a rule, and with it a breaker: what one asks for in vain says nothing about another that is more
//! patient.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use slidegate_core::{Policy, Reason};

use crate::clock::Clock;
use crate::error::StoreError;
use crate::resilience::breaker::{Breaker, BreakerState, Permit};
use crate::resilience::rules::FailureRule;
use crate::resilience::signals;

/// No more often than this are beginning and end of falling back told.
const QUIET_MS: u64 = 1000;

pub(super) struct Group<C: Clock> {
    pub(super) rule: FailureRule,
    pub(super) breaker: Breaker<C>,
    /// Why the store is left alone, if it is.
    last_failure: Mutex<Option<StoreError>>,
    is_falling_back: AtomicBool,
    told_ms: AtomicU64,
}

impl<C: Clock> Group<C> {
    pub(super) fn new(rule: FailureRule, breaker: Breaker<C>) -> Self {
        Self {
            rule,
            breaker,
            last_failure: Mutex::default(),
            is_falling_back: AtomicBool::new(false),
            told_ms: AtomicU64::new(0),
        }
    }

    /// What to tell those whom the breaker does not let through.
    pub(super) fn resting(&self) -> StoreError {
        let last = self.last_failure.lock().unwrap_or_else(PoisonError::into_inner);
        let why = last.as_ref().map_or_else(|| "the store has failed".to_owned(), ToString::to_string);
        StoreError::transient(format!("{why}; it is left alone for a while"))
    }

    /// Tells the breaker, and whoever it does not let through.
    pub(super) fn conclude(&self, permit: Permit<'_, C>, failure: Option<&StoreError>) {
        if let Some(error) = failure {
            self.note(error);
        }
        permit.settled(failure.is_some());
    }

    /// Keeps why the store has not decided, for those who ask later.
    pub(super) fn note(&self, error: &StoreError) {
        *self.last_failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(error.clone());
    }

    /// The store has not decided for `policy`.
    pub(super) fn falls_back(&self, policy: &Policy, reason: Reason, now_ms: u64) {
        signals::fell_back(policy, self.rule.on_failure, reason);
        self.turn(true, now_ms, || {
            let last = self.last_failure.lock().unwrap_or_else(PoisonError::into_inner).clone();
            signals::began_to_fall_back(policy, self.rule.on_failure, reason, last.as_ref());
        });
    }

    /// It has.
    pub(super) fn is_decided(&self, policy: &Policy, now_ms: u64) {
        // Not while it is taken up again little by little, with others still falling back.
        if self.is_falling_back.load(Ordering::Relaxed) && self.breaker.state() == BreakerState::Closed {
            self.turn(false, now_ms, || signals::is_decided_again(policy));
        }
    }

    /// Tells that it has turned, unless that was told a moment ago: then it will be when it turns the next time.
    fn turn(&self, is_falling_back: bool, now_ms: u64, tell: impl FnOnce()) {
        if self.is_falling_back.load(Ordering::Relaxed) == is_falling_back {
            return;
        }
        let told_ms = self.told_ms.load(Ordering::Relaxed);
        let is_quiet = now_ms.saturating_sub(told_ms) < QUIET_MS;
        let order = Ordering::Relaxed;
        // Of many who see it at once, one tells.
        if !is_quiet && self.told_ms.compare_exchange(told_ms, now_ms, order, order).is_ok() {
            self.is_falling_back.store(is_falling_back, order);
            tell();
        }
    }
}
