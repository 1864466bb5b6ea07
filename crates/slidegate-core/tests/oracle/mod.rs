//! A naive exact log: a list of all admissions as (time, units) pairs. Slow, but simple enough to be correct.

#![allow(dead_code, clippy::unwrap_used, reason = "each test file uses its own part, and a test may panic")]

use slidegate_core::{Action, Decision, Policy, Quota, State, Verb, decide};

/// Admissions in their order, as (time, units) pairs.
#[derive(Clone, Debug, Default)]
pub(crate) struct Log(pub(crate) Vec<(u64, u64)>);

impl Log {
    pub(crate) fn admit(&mut self, at_ms: u64, units: u64) {
        self.0.push((at_ms, units));
    }

    /// Units admitted in the `span_ms` up to and including `now_ms`.
    pub(crate) fn count(&self, now_ms: u64, span_ms: u64) -> u64 {
        self.0.iter().filter(|(at_ms, _)| at_ms + span_ms > now_ms && *at_ms <= now_ms).map(|(_, n)| n).sum()
    }

    /// The maximum number of units in an interval of `span_ms`. Only intervals that end with an admission matter.
    pub(crate) fn busiest(&self, span_ms: u64) -> u64 {
        self.0.iter().map(|(at_ms, _)| self.count(*at_ms, span_ms)).max().unwrap_or(0)
    }
}

/// One key under one policy, with the states that a store would keep.
#[derive(Clone, Debug)]
pub(crate) struct Key {
    pub(crate) policy: Policy,
    pub(crate) states: Vec<State>,
}

impl Key {
    pub(crate) fn new(quotas: &[Quota]) -> Self {
        Self { policy: Policy::anonymous(quotas.iter().copied()).unwrap(), states: Vec::new() }
    }

    pub(crate) fn parse(quotas: &[&str]) -> Self {
        Self { policy: Policy::parse("test", quotas.iter().copied()).unwrap(), states: Vec::new() }
    }

    pub(crate) fn act(&mut self, verb: Verb, now_ms: u64, cost: u64) -> Decision {
        decide(&mut self.states, &self.policy, Action::new(verb, now_ms, cost)).0
    }

    pub(crate) fn check(&mut self, now_ms: u64, cost: u64) -> Decision {
        self.act(Verb::Check, now_ms, cost)
    }

    pub(crate) fn peek(&mut self, now_ms: u64, cost: u64) -> Decision {
        self.act(Verb::Peek, now_ms, cost)
    }
}
