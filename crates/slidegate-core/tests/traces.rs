//! Compares the core with an independent oracle on seeded traces.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod model;

use std::pin::pin;
use std::task::{Context, Poll, Waker};

use model::{Outcome, Step, assert_traces_match_oracle};
use slidegate_core::{Action, Policy, decide};

#[test]
fn every_decision_equals_the_oracles() {
    let new_key = || {
        let mut states = Vec::new();
        async move |policy: &Policy, Step { verb, now_ms, cost, .. }: Step| {
            Outcome::from(&decide(&mut states, policy, Action::new(verb, now_ms, cost)).0)
        }
    };
    let traces = pin!(assert_traces_match_oracle(20_000, new_key));
    assert_eq!(traces.poll(&mut Context::from_waker(Waker::noop())), Poll::Ready(()));
}
