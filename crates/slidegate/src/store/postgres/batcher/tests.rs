//! Distribution of requests over calls, and their order.

use slidegate_core::Verb;

use super::*;
use crate::store::postgres::PostgresStoreBuilder;
use crate::store::postgres::batch::{KeyedOperation, Response};
use crate::store::postgres::encoded_operation::EncodedOperation;
use crate::store::remote::{PendingResponse, QueueSender, queue};

struct Rig {
    batcher: Batcher,
    queue: QueueSender<PostgresStore>,
    /// A request whose caller is dropped is not sent.
    callers: Vec<PendingResponse<Response>>,
    in_flight: InFlight,
}

impl Rig {
    fn new(connections: usize) -> Self {
        let builder = PostgresStoreBuilder::parse("postgres://localhost").unwrap().connections(connections);
        let (sender, receiver) = queue(8192);
        let batcher = Batcher::new(receiver, Arc::new(Shared::new(&builder).unwrap()));
        Self { batcher, queue: sender, callers: Vec::new(), in_flight: InFlight::default() }
    }

    /// Creates a request that is identified by its number.
    fn request(&mut self, key: u8, number: i64, is_durable: bool) -> Request {
        let encoded = EncodedOperation(vec![number]);
        let operation = KeyedOperation { name: Name([key; 16]), is_durable, verb: Verb::Check, encoded };
        let (request, pending) = Request::new(operation);
        self.callers.push(pending);
        request
    }

    async fn enqueue_group(&mut self, keys: impl IntoIterator<Item = u8>, is_durable: fn(u8) -> bool) {
        let requests = keys.into_iter().map(|key| self.request(key, 0, is_durable(key))).collect();
        self.queue.send_group(requests).await;
    }

    fn stage(&mut self, key: u8, number: i64) {
        let request = self.request(key, number, false);
        self.batcher.stage(Queued::Single(request), &self.in_flight);
    }

    fn start_calls(&mut self) -> Vec<Call> {
        let calls = self.batcher.next_calls(&self.in_flight);
        for call in &calls {
            self.in_flight.add(&call.contents);
        }
        calls
    }

    fn complete(&mut self, call: &Call) {
        self.in_flight.remove(&call.contents);
        self.batcher.unblock(&call.contents.names);
    }
}

#[tokio::test]
async fn requests_of_one_key_keep_their_order() {
    let mut rig = Rig::new(3);
    // More than one call takes: it contains the first request of key 200 and not the second.
    for place in 0..70 {
        let key = if place % 58 == 10 { 200 } else { place };
        rig.stage(key, i64::from(place));
    }
    let first = rig.start_calls();
    assert_eq!((first.len(), first[0].contents.requests), (1, FULL_BATCH));
    // The third arrives while the first is in flight and the second is not blocked yet.
    rig.stage(200, 1000);
    let second = rig.start_calls();
    assert_eq!(second[0].contents.requests, 5, "the requests of the other keys");
    rig.stage(200, 1001);
    rig.complete(&first[0]);
    rig.stage(200, 1002);
    let third = rig.start_calls();
    assert_eq!(third[0].batches[0].arguments().ops, [68, 1000, 1001, 1002]);
}

#[tokio::test]
async fn large_calls_leave_one_connection_free() {
    let mut rig = Rig::new(2);
    for _ in 0..2 {
        rig.enqueue_group(0..=99, |_| false).await;
    }
    let large = rig.start_calls();
    assert_eq!((large[0].contents.requests, large[0].batches.len()), (100, 2));
    assert!(rig.start_calls().is_empty(), "the second group waits");
    rig.enqueue_group(100..=102, |_| false).await;
    assert_eq!(rig.start_calls()[0].contents.requests, 3);
    rig.complete(&large[0]);
    assert_eq!(rig.start_calls()[0].contents.requests, 100);
    assert_eq!(rig.batcher.queue.waiting_requests(), 0, "all slots are free again");
}

#[tokio::test]
async fn large_and_small_calls_alternate_on_one_connection() {
    let mut rig = Rig::new(1);
    for _ in 0..3 {
        rig.enqueue_group(0..=99, |_| false).await;
    }
    rig.stage(200, 0);
    let mut requests = Vec::new();
    for _ in 0..4 {
        let calls = rig.start_calls();
        requests.push(calls[0].contents.requests);
        rig.complete(&calls[0]);
        rig.stage(201, 0);
    }
    assert_eq!(requests, [1, 100, 2, 100]);
}

#[tokio::test]
async fn single_requests_of_different_tables_do_not_share_a_call() {
    let mut rig = Rig::new(4);
    for (key, is_durable) in [(1, false), (2, true), (3, false)] {
        let request = rig.request(key, 0, is_durable);
        rig.queue.try_send(request);
    }
    rig.enqueue_group(4..=9, |key| key % 2 == 0).await;
    let calls = rig.start_calls();
    assert_eq!(calls.iter().map(|call| call.batches.len()).collect::<Vec<_>>(), [1, 1]);
    assert_eq!(calls.iter().map(|call| call.contents.requests).sum::<usize>(), 3);
    let group = rig.start_calls();
    assert_eq!((group.len(), group[0].batches.len(), group[0].contents.requests), (1, 2, 6));
}

#[tokio::test]
async fn small_groups_with_both_tables_share_a_call() {
    let mut rig = Rig::new(2);
    for first in [0, 10, 20] {
        rig.enqueue_group(first..=first + 1, |key| key % 2 == 0).await;
    }
    rig.enqueue_group(100..=199, |_| false).await;
    let shared = rig.start_calls();
    assert_eq!((shared.len(), shared[0].batches.len(), shared[0].contents.requests), (1, 2, 6));
    assert!(rig.start_calls().is_empty(), "one connection serves large calls");
    rig.complete(&shared[0]);
    assert_eq!(rig.start_calls()[0].contents.requests, 100);
}

#[tokio::test]
async fn abandoned_groups_are_not_sent_and_free_their_slots() {
    let mut rig = Rig::new(2);
    rig.enqueue_group(0..=99, |_| false).await;
    rig.enqueue_group(0..=9, |_| false).await;
    rig.callers.clear();
    assert!(rig.start_calls().is_empty() && rig.start_calls().is_empty());
    assert_eq!(rig.batcher.queue.waiting_requests(), 0);
}

#[tokio::test]
async fn a_dropped_group_frees_its_slots() {
    let mut rig = Rig::new(2);
    rig.enqueue_group(0..=9, |_| false).await;
    let group = rig.batcher.queue.recv().await;
    assert_eq!(rig.batcher.queue.waiting_requests(), 9);
    drop(group);
    assert_eq!(rig.batcher.queue.waiting_requests(), 0);
}
