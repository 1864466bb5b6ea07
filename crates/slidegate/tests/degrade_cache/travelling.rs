//! Requests that take their time: a cache learns late, and in another order.

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::task::Poll;

use proptest::collection::vec;
use proptest::prelude::{Strategy, prop_oneof};
use proptest::sample::select;
use slidegate::{Decision, ManualClock, Policy, Source, Store, StoreError, Verb};

use crate::cache;
use crate::degrade_traces::{Distant, Request, START, algorithm, hold, memory, poll, request, versions};

type Answer<'a> = Pin<Box<dyn Future<Output = Result<Decision, StoreError>> + 'a>>;

/// A request on its way.
struct Flight<'a> {
    request: Request,
    is_decided: bool,
    answer: Answer<'a>,
}

/// What happens next where requests take their time.
#[derive(Clone, Copy, Debug)]
enum Event {
    Send(Request),
    /// One of those under way gets on, or arrives.
    GoOn(usize),
    /// One of those under way is not waited for any more.
    GiveUp(usize),
    Pass {
        ms: u64,
    },
}

fn event() -> impl Strategy<Value = Event> {
    let pass_ms = prop_oneof![8 => 1..=3_u64, 3 => 1..=100_u64, 1 => 1..=1500_u64];
    prop_oneof![
        12 => request().prop_map(Event::Send),
        16 => (0..4_usize).prop_map(Event::GoOn),
        1 => (0..4_usize).prop_map(Event::GiveUp),
        6 => pass_ms.prop_map(|ms| Event::Pass { ms }),
    ]
}

/// Has requests travel, `most` at a time. Whatever the cache denies, the store denies at that very moment, unless a refund
/// or a reset of the key has been decided and nobody has been told so.
fn travel_losslessly(most: usize, policy: &Policy, events: Vec<Event>) -> u64 {
    let clock = ManualClock::at(START);
    let cache = cache(Distant(memory(&clock)), &clock, 10_000);
    let mut flights: Vec<Flight<'_>> = Vec::new();
    let mut denied_costs = HashMap::new();
    let mut hits = 0;
    for event in events {
        match event {
            Event::Pass { ms } => clock.advance(ms),
            Event::GiveUp(index) if flights.len() > 1 => drop(flights.remove(index % flights.len())),
            Event::GoOn(index) if !flights.is_empty() => {
                let index = index % flights.len();
                let Poll::Ready(answer) = poll(flights[index].answer.as_mut()) else {
                    flights[index].is_decided = true;
                    continue;
                };
                let request = flights.remove(index).request;
                if request.verb == Verb::Check && !answer.unwrap().is_allowed() {
                    denied_costs.insert(request.key, request.cost);
                }
            }
            Event::Send(request) if flights.len() < most => {
                let mut answer: Answer<'_> = Box::pin(cache.execute(request.under(policy)));
                let Poll::Ready(decision) = poll(answer.as_mut()) else {
                    flights.push(Flight { request, is_decided: false, answer });
                    continue;
                };
                let decision = decision.unwrap();
                assert_eq!((decision.source(), decision.is_allowed()), (Source::Cache, false));
                hits += 1;
                let undoes = |flight: &Flight<'_>| {
                    let verb = flight.request.verb;
                    flight.is_decided
                        && matches!(verb, Verb::Refund | Verb::Reset)
                        && flight.request.key == request.key
                };
                if flights.iter().any(undoes) {
                    continue;
                }
                let truth = cache
                    .store()
                    .0
                    .execute_now(Request { verb: Verb::Peek, ..request }.under(policy))
                    .unwrap();
                assert!(!truth.is_allowed(), "{request:?} was denied and would not have been");
                if most == 1 && denied_costs[request.key] == request.cost {
                    assert!(decision.retry() >= truth.retry(), "{request:?} is told to come too early");
                }
            }
            Event::Send(_) | Event::GoOn(_) | Event::GiveUp(_) => {}
        }
    }
    hits
}

fn travels() -> impl Strategy<Value = (Policy, Vec<Event>)> {
    let policy = algorithm().prop_flat_map(|algorithm| select(versions(algorithm)));
    (policy, vec(event(), 1..400))
}

#[test]
fn a_denial_that_arrives_late_ends_in_time() {
    hold(1000, travels(), |(policy, events)| travel_losslessly(1, &policy, events));
}

#[test]
fn denials_and_refunds_may_overtake_each_other() {
    hold(1500, travels(), |(policy, events)| travel_losslessly(4, &policy, events));
}
