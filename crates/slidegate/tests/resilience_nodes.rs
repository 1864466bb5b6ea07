//! Many nodes with caches of denials and separate invalidation feeds. A cached denial that the store would allow lasts
//! at most one second.

#![cfg(feature = "resilience")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[allow(dead_code, reason = "other tests need the rest")]
mod resilience_traces;

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::{Just, Strategy, prop_oneof};
use proptest::sample::select;
use slidegate::resilience::DeniedCache;
use slidegate::store::{FeedVersion, InvalidationFeed, Operation, Responses, Store};
use slidegate::{Check, Clock, Decision, ManualClock, Policy, Source, StoreError, Verb};

use resilience_traces::{
    Distant, Request, START, algorithm, check_property, execute_one, memory, poll, request, versions,
};

const NODES: usize = 3;
/// Time within which a refund reaches all nodes.
const MAX_DELAY_MS: u64 = 900;

/// The shared store, and the invalidations that each node has not received yet.
struct Shared {
    store: Distant,
    pending: [Mutex<Vec<u16>>; NODES],
    /// Keys and times of refunds and resets.
    refunds: Mutex<Vec<(Vec<u8>, u64)>>,
}

/// Connection of one node to the store.
struct Connection {
    shared: Arc<Shared>,
    feed: Arc<InvalidationFeed>,
}

impl Connection {
    /// Publishes the invalidation after the store's decision.
    fn publish(&self, operation: &Operation<'_>, now_ms: u64) {
        if matches!(operation.verb, Verb::Refund | Verb::Reset) {
            let key = operation.check.key;
            self.shared.pending.iter().for_each(|pending| pending.lock().unwrap().push(part(key)));
            self.shared.refunds.lock().unwrap().push((key.to_vec(), now_ms));
        }
    }
}

fn part(key: &[u8]) -> u16 {
    u16::from(key[0])
}

impl Store for Connection {
    async fn execute(&self, operations: &[Operation<'_>]) -> Responses {
        let mut responses = Box::pin(self.shared.store.execute(operations));
        let mut polls = 0;
        std::future::poll_fn(|context| {
            // The store decides on the second poll.
            polls += 1;
            if polls == 2 {
                for operation in operations {
                    self.publish(operation, self.clock().now_ms());
                }
            }
            responses.as_mut().poll(context)
        })
        .await
    }

    async fn forget(&self, policy: &Policy) -> Result<Option<u64>, StoreError> {
        self.shared.store.forget(policy).await
    }

    fn clock(&self) -> &dyn Clock {
        self.shared.store.clock()
    }

    fn feed_version(&self, check: &Check<'_>) -> Option<FeedVersion> {
        Some(self.feed.version(part(check.key)))
    }
}

#[derive(Clone, Copy, Debug)]
enum Event {
    /// A node sends a request to the store.
    Send(usize, Request),
    /// A request in flight advances or completes.
    Advance(usize),
    /// A node receives all pending invalidations.
    Receive(usize),
    Wait {
        ms: u64,
    },
}

fn event() -> impl Strategy<Value = Event> {
    let pass_ms = prop_oneof![6 => 1..=3_u64, 3 => 1..=200_u64, 2 => 700..=1500_u64];
    prop_oneof![
        12 => (0..NODES, request()).prop_map(|(node, request)| Event::Send(node, request)),
        16 => (0..6_usize).prop_map(Event::Advance),
        6 => (0..NODES).prop_map(Event::Receive),
        6 => pass_ms.prop_map(|ms| Event::Wait { ms }),
    ]
}

type ResponseFuture<'a> = Pin<Box<dyn Future<Output = Result<Decision, StoreError>> + 'a>>;

/// Runs the events and returns the number of cache hits.
fn check_no_denial_is_stale_for_long(policy: &Policy, events: Vec<Event>) -> u64 {
    let clock = ManualClock::at(START);
    let shared = Arc::new(Shared {
        store: Distant(memory(&clock)),
        pending: Default::default(),
        refunds: Mutex::default(),
    });
    let nodes: [DeniedCache<Connection, ManualClock>; NODES] = std::array::from_fn(|_| {
        let connection = Connection {
            shared: Arc::clone(&shared),
            feed: Arc::new(InvalidationFeed::by(clock.clone(), 256)),
        };
        let builder = DeniedCache::builder(connection).clock(clock.clone());
        // A short age without the feed, so that nearly all hits depend on it.
        builder.max_age(Duration::from_millis(50)).build().unwrap()
    });
    let mut in_flight: Vec<ResponseFuture<'_>> = Vec::new();
    let mut hits = 0;
    for event in events {
        match event {
            Event::Wait { ms } => clock.advance(ms),
            Event::Receive(node) => {
                let feed = &nodes[node].store().feed;
                shared.pending[node].lock().unwrap().drain(..).for_each(|part| feed.record(part));
                feed.confirm(clock.now_ms());
            }
            Event::Advance(index) if !in_flight.is_empty() => {
                let index = index % in_flight.len();
                if poll(in_flight[index].as_mut()).is_ready() {
                    drop(in_flight.remove(index));
                }
            }
            Event::Send(node, request) if in_flight.len() < 6 => {
                let mut response: ResponseFuture<'_> =
                    Box::pin(execute_one(&nodes[node], request.under(policy)));
                let Poll::Ready(decision) = poll(response.as_mut()) else {
                    in_flight.push(response);
                    continue;
                };
                let decision = decision.unwrap();
                assert_eq!((decision.source(), decision.is_allowed()), (Source::Cache, false));
                hits += 1;
                let peek = Request { verb: Verb::Peek, ..request }.under(policy);
                let is_recent = |(key, at_ms): &(Vec<u8>, u64)| {
                    key == request.key.as_bytes() && at_ms + MAX_DELAY_MS >= clock.now_ms()
                };
                if shared.store.0.execute_now(peek).unwrap().is_allowed() {
                    let refunds = shared.refunds.lock().unwrap();
                    assert!(
                        refunds.iter().any(is_recent),
                        "{request:?} is denied, and was refunded long ago"
                    );
                }
            }
            Event::Send(..) | Event::Advance(_) => {}
        }
    }
    hits
}

#[test]
fn refunds_reach_all_nodes_within_a_second() {
    let policy = algorithm().prop_flat_map(|algorithm| {
        // Windows long enough that only a refund ends a denial.
        let long = Policy::parse("p", [format!("3/1m {algorithm}").as_str()]).unwrap();
        prop_oneof![select(versions(algorithm)), Just(long)]
    });
    let case = (policy, vec(event(), 1..400));
    check_property(1500, case, |(policy, events)| check_no_denial_is_stale_for_long(&policy, events));
}
