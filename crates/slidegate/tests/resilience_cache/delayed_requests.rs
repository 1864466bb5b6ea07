//! Requests in flight: decisions reach the cache late and out of order.

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::task::Poll;

use proptest::collection::vec;
use proptest::prelude::{Strategy, prop_oneof};
use proptest::sample::select;
use slidegate::{Decision, ManualClock, Policy, Source, StoreError, Verb};

use crate::cache;
use crate::resilience_traces::{
    Distant, Request, START, algorithm, check_property, execute_one, memory, poll, request, versions,
};

type ResponseFuture<'a> = Pin<Box<dyn Future<Output = Result<Decision, StoreError>> + 'a>>;

/// A request in flight.
struct InFlight<'a> {
    request: Request,
    is_decided: bool,
    response: ResponseFuture<'a>,
}

/// Next step of a trace with requests in flight.
#[derive(Clone, Copy, Debug)]
enum Event {
    Send(Request),
    /// A request in flight advances or completes.
    Advance(usize),
    /// A request in flight is cancelled.
    Cancel(usize),
    Wait {
        ms: u64,
    },
}

fn event() -> impl Strategy<Value = Event> {
    let pass_ms = prop_oneof![8 => 1..=3_u64, 3 => 1..=100_u64, 1 => 1..=1500_u64];
    prop_oneof![
        12 => request().prop_map(Event::Send),
        16 => (0..4_usize).prop_map(Event::Advance),
        1 => (0..4_usize).prop_map(Event::Cancel),
        6 => pass_ms.prop_map(|ms| Event::Wait { ms }),
    ]
}

/// Runs the events with at most `max_in_flight` requests in flight. The store denies each request that the cache
/// denies, except after the store decided a refund or a reset whose response is still in flight.
fn check_denials_are_exact(max_in_flight: usize, policy: &Policy, events: Vec<Event>) -> u64 {
    let clock = ManualClock::at(START);
    let cache = cache(Distant(memory(&clock)), &clock, 10_000);
    let mut in_flight: Vec<InFlight<'_>> = Vec::new();
    let mut denied_costs = HashMap::new();
    let mut hits = 0;
    for event in events {
        match event {
            Event::Wait { ms } => clock.advance(ms),
            Event::Cancel(index) if in_flight.len() > 1 => drop(in_flight.remove(index % in_flight.len())),
            Event::Advance(index) if !in_flight.is_empty() => {
                let index = index % in_flight.len();
                let Poll::Ready(response) = poll(in_flight[index].response.as_mut()) else {
                    in_flight[index].is_decided = true;
                    continue;
                };
                let request = in_flight.remove(index).request;
                if request.verb == Verb::Check && !response.unwrap().is_allowed() {
                    denied_costs.insert(request.key, request.cost);
                }
            }
            Event::Send(request) if in_flight.len() < max_in_flight => {
                let mut response: ResponseFuture<'_> = Box::pin(execute_one(&cache, request.under(policy)));
                let Poll::Ready(decision) = poll(response.as_mut()) else {
                    in_flight.push(InFlight { request, is_decided: false, response });
                    continue;
                };
                let decision = decision.unwrap();
                assert_eq!((decision.source(), decision.is_allowed()), (Source::Cache, false));
                hits += 1;
                let undoes = |flight: &InFlight<'_>| {
                    let verb = flight.request.verb;
                    flight.is_decided
                        && matches!(verb, Verb::Refund | Verb::Reset)
                        && flight.request.key == request.key
                };
                if in_flight.iter().any(undoes) {
                    continue;
                }
                let truth = cache
                    .store()
                    .0
                    .execute_now(Request { verb: Verb::Peek, ..request }.under(policy))
                    .unwrap();
                assert!(!truth.is_allowed(), "{request:?} was denied and would not have been");
                if max_in_flight == 1 && denied_costs[request.key] == request.cost {
                    assert!(
                        decision.retry() >= truth.retry(),
                        "{request:?} gets a retry time that is too early"
                    );
                }
            }
            Event::Send(_) | Event::Advance(_) | Event::Cancel(_) => {}
        }
    }
    hits
}

fn events() -> impl Strategy<Value = (Policy, Vec<Event>)> {
    let policy = algorithm().prop_flat_map(|algorithm| select(versions(algorithm)));
    (policy, vec(event(), 1..400))
}

#[test]
fn a_denial_that_arrives_late_ends_in_time() {
    check_property(1000, events(), |(policy, events)| check_denials_are_exact(1, &policy, events));
}

#[test]
fn denials_and_refunds_may_overtake_each_other() {
    check_property(1500, events(), |(policy, events)| check_denials_are_exact(4, &policy, events));
}
