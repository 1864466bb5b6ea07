//! Many nodes that remember denials, each with its own ear to what the others give back: nobody is denied for longer than
//! a second what the store would have allowed.

#![cfg(feature = "degrade")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[allow(dead_code, reason = "other tests need the rest")]
mod degrade_traces;

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::{Just, Strategy, prop_oneof};
use proptest::sample::select;
use slidegate::degrade::DeniedCache;
use slidegate::{
    Check, Clock, Decision, FeedVersion, InvalidationFeed, ManualClock, Operation, Policy, Source, Store,
    StoreError, Verb,
};

use degrade_traces::{Distant, Request, START, algorithm, hold, memory, poll, request, versions};

const NODES: usize = 3;
/// What is given back counts everywhere within this time.
const SOON_MS: u64 = 900;

/// The store, and what it has said to nodes that have not heard it yet.
struct Middle {
    store: Distant,
    unheard: [Mutex<Vec<u16>>; NODES],
    /// When which key was given something back.
    given_back: Mutex<Vec<(Vec<u8>, u64)>>,
}

/// The way of one node to the store.
struct Way {
    middle: Arc<Middle>,
    feed: Arc<InvalidationFeed>,
}

impl Way {
    /// Says what has happened when the store has decided.
    fn tell(&self, operation: &Operation<'_>, now_ms: u64) {
        if matches!(operation.verb, Verb::Refund | Verb::Reset) {
            let key = operation.check.key;
            self.middle.unheard.iter().for_each(|unheard| unheard.lock().unwrap().push(part(key)));
            self.middle.given_back.lock().unwrap().push((key.to_vec(), now_ms));
        }
    }
}

fn part(key: &[u8]) -> u16 {
    u16::from(key[0])
}

impl Store for Way {
    async fn execute(&self, operation: Operation<'_>) -> Result<Decision, StoreError> {
        let mut answer = Box::pin(self.middle.store.execute(operation));
        let mut polls = 0;
        std::future::poll_fn(|context| {
            // It decides when it is polled for the second time.
            polls += 1;
            if polls == 2 {
                self.tell(&operation, self.clock().now_ms());
            }
            answer.as_mut().poll(context)
        })
        .await
    }

    async fn execute_many(&self, operations: &[Operation<'_>]) -> Vec<Result<Decision, StoreError>> {
        self.middle.store.execute_many(operations).await
    }

    fn clock(&self) -> &dyn Clock {
        self.middle.store.clock()
    }

    fn feed_version(&self, check: &Check<'_>) -> Option<FeedVersion> {
        Some(self.feed.version(part(check.key)))
    }
}

#[derive(Clone, Copy, Debug)]
enum Event {
    /// A node asks the store.
    Send(usize, Request),
    /// One of those under way gets on, or arrives.
    GoOn(usize),
    /// A node hears everything that was said until now.
    Hear(usize),
    Pass {
        ms: u64,
    },
}

fn event() -> impl Strategy<Value = Event> {
    let pass_ms = prop_oneof![6 => 1..=3_u64, 3 => 1..=200_u64, 2 => 700..=1500_u64];
    prop_oneof![
        12 => (0..NODES, request()).prop_map(|(node, request)| Event::Send(node, request)),
        16 => (0..6_usize).prop_map(Event::GoOn),
        6 => (0..NODES).prop_map(Event::Hear),
        6 => pass_ms.prop_map(|ms| Event::Pass { ms }),
    ]
}

type Answer<'a> = Pin<Box<dyn Future<Output = Result<Decision, StoreError>> + 'a>>;

/// Says how often a denial was told that is older than a node without subscriber would remember it.
fn nobody_is_denied_for_long(policy: &Policy, events: Vec<Event>) -> u64 {
    let clock = ManualClock::at(START);
    let middle = Arc::new(Middle {
        store: Distant(memory(&clock)),
        unheard: Default::default(),
        given_back: Mutex::default(),
    });
    let nodes: [DeniedCache<Way, ManualClock>; NODES] = std::array::from_fn(|_| {
        let way =
            Way { middle: Arc::clone(&middle), feed: Arc::new(InvalidationFeed::by(clock.clone(), 256)) };
        let builder = DeniedCache::builder(way).clock(clock.clone());
        // Little of what is told is told by age.
        builder.max_age(Duration::from_millis(50)).build().unwrap()
    });
    let mut flights: Vec<Answer<'_>> = Vec::new();
    let mut hits = 0;
    for event in events {
        match event {
            Event::Pass { ms } => clock.advance(ms),
            Event::Hear(node) => {
                let feed = &nodes[node].store().feed;
                middle.unheard[node].lock().unwrap().drain(..).for_each(|part| feed.record(part));
                feed.confirm(clock.now_ms());
            }
            Event::GoOn(index) if !flights.is_empty() => {
                let index = index % flights.len();
                if poll(flights[index].as_mut()).is_ready() {
                    drop(flights.remove(index));
                }
            }
            Event::Send(node, request) if flights.len() < 6 => {
                let mut answer: Answer<'_> = Box::pin(nodes[node].execute(request.under(policy)));
                let Poll::Ready(decision) = poll(answer.as_mut()) else {
                    flights.push(answer);
                    continue;
                };
                let decision = decision.unwrap();
                assert_eq!((decision.source(), decision.is_allowed()), (Source::Cache, false));
                hits += 1;
                let peek = Request { verb: Verb::Peek, ..request }.under(policy);
                let is_recent = |(key, at_ms): &(Vec<u8>, u64)| {
                    key == request.key.as_bytes() && at_ms + SOON_MS >= clock.now_ms()
                };
                if middle.store.0.execute_now(peek).unwrap().is_allowed() {
                    let given_back = middle.given_back.lock().unwrap();
                    assert!(
                        given_back.iter().any(is_recent),
                        "{request:?} is denied, and was given back long ago"
                    );
                }
            }
            Event::Send(..) | Event::GoOn(_) => {}
        }
    }
    hits
}

#[test]
fn what_is_given_back_counts_everywhere_within_a_second() {
    let policy = algorithm().prop_flat_map(|algorithm| {
        // With windows so long that nothing else ends a denial.
        let long = Policy::parse("p", [format!("3/1m {algorithm}").as_str()]).unwrap();
        prop_oneof![select(versions(algorithm)), Just(long)]
    });
    let case = (policy, vec(event(), 1..400));
    hold(1500, case, |(policy, events)| nobody_is_denied_for_long(&policy, events));
}
