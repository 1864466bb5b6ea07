//! What goes together, in which order, and what waits.

use slidegate_core::Verb;

use super::*;
use crate::store::postgres::PostgresStoreBuilder;
use crate::store::postgres::batch::Answer;
use crate::store::remote::{PendingResponse, QueueSender, queue, response_channel};

struct Rig {
    gatherer: Gatherer,
    queue: QueueSender<Request>,
    /// Who gives up is left out.
    callers: Vec<PendingResponse<Answer>>,
    sent: Sent,
}

impl Rig {
    fn new(connections: usize) -> Self {
        let builder = PostgresStoreBuilder::parse("postgres://localhost").unwrap().connections(connections);
        let (queue, waiting) = queue("postgres", 8192);
        let gatherer = Gatherer::new(waiting, Arc::new(Shared::new(&builder).unwrap()));
        Self { gatherer, queue, callers: Vec::new(), sent: Sent::default() }
    }

    /// One that can be told from others by its number.
    fn request(&mut self, key: u8, number: i64, is_durable: bool) -> Request {
        let (reply, pending) = response_channel();
        self.callers.push(pending);
        let name = Name([key; 16]);
        Request { name, is_durable, verb: Verb::Check, description: vec![number], reply }
    }

    async fn ask_together(&mut self, keys: impl IntoIterator<Item = u8>, is_durable: fn(u8) -> bool) {
        let requests = keys.into_iter().map(|key| self.request(key, 0, is_durable(key))).collect();
        self.queue.send_group(requests).await;
    }

    fn stage(&mut self, key: u8, number: i64) {
        let request = self.request(key, number, false);
        self.gatherer.stage(Queued::Single(request), &self.sent);
    }

    fn set_out(&mut self) -> Vec<Call> {
        let calls = self.gatherer.gather(&self.sent);
        for call in &calls {
            self.sent.add(&call.carried);
        }
        calls
    }

    fn come_back(&mut self, call: &Call) {
        self.sent.remove(&call.carried);
        self.gatherer.release(&call.carried.names);
    }
}

#[tokio::test]
async fn no_two_of_a_key_change_places() {
    let mut rig = Rig::new(3);
    // More than a call takes: the key's first is in it, its second is not.
    for place in 0..70 {
        let key = if place % 58 == 10 { 200 } else { place };
        rig.stage(key, i64::from(place));
    }
    let first = rig.set_out();
    assert_eq!((first.len(), first[0].carried.requests), (1, MAX_BATCH));
    // The third comes while the first is under way and the second is not blocked yet.
    rig.stage(200, 1000);
    let second = rig.set_out();
    assert_eq!(second[0].carried.requests, 5, "those whose keys are free");
    rig.stage(200, 1001);
    rig.come_back(&first[0]);
    rig.stage(200, 1002);
    let third = rig.set_out();
    assert_eq!(third[0].batches[0].arguments().ops, [68, 1000, 1001, 1002]);
}

#[tokio::test]
async fn what_is_large_leaves_a_connection_to_others() {
    let mut rig = Rig::new(2);
    for _ in 0..2 {
        rig.ask_together(0..=99, |_| false).await;
    }
    let large = rig.set_out();
    assert_eq!((large[0].carried.requests, large[0].batches.len()), (100, 2));
    assert!(rig.set_out().is_empty(), "the other one waits");
    rig.ask_together(100..=102, |_| false).await;
    assert_eq!(rig.set_out()[0].carried.requests, 3);
    rig.come_back(&large[0]);
    assert_eq!(rig.set_out()[0].carried.requests, 100);
    assert_eq!(rig.gatherer.waiting.waiting_requests(), 0, "all the room is free again");
}

#[tokio::test]
async fn on_one_connection_what_is_large_takes_turns_with_others() {
    let mut rig = Rig::new(1);
    for _ in 0..3 {
        rig.ask_together(0..=99, |_| false).await;
    }
    rig.stage(200, 0);
    let mut carried = Vec::new();
    for _ in 0..4 {
        let calls = rig.set_out();
        carried.push(calls[0].carried.requests);
        rig.come_back(&calls[0]);
        rig.stage(201, 0);
    }
    assert_eq!(carried, [1, 100, 2, 100]);
}

#[tokio::test]
async fn nobody_waits_for_another_table_who_did_not_ask_for_it() {
    let mut rig = Rig::new(4);
    for (key, is_durable) in [(1, false), (2, true), (3, false)] {
        let request = rig.request(key, 0, is_durable);
        rig.queue.try_send(request);
    }
    rig.ask_together(4..=9, |key| key % 2 == 0).await;
    let calls = rig.set_out();
    assert_eq!(calls.iter().map(|call| call.batches.len()).collect::<Vec<_>>(), [1, 1]);
    assert_eq!(calls.iter().map(|call| call.carried.requests).sum::<usize>(), 3);
    let together = rig.set_out();
    assert_eq!((together.len(), together[0].batches.len(), together[0].carried.requests), (1, 2, 6));
}

#[tokio::test]
async fn what_needs_both_tables_goes_with_others_of_its_kind() {
    let mut rig = Rig::new(2);
    for first in [0, 10, 20] {
        rig.ask_together(first..=first + 1, |key| key % 2 == 0).await;
    }
    rig.ask_together(100..=199, |_| false).await;
    let together = rig.set_out();
    assert_eq!((together.len(), together[0].batches.len(), together[0].carried.requests), (1, 2, 6));
    assert!(rig.set_out().is_empty(), "there is one connection for these");
    rig.come_back(&together[0]);
    assert_eq!(rig.set_out()[0].carried.requests, 100);
}

#[tokio::test]
async fn a_batch_whose_caller_has_gone_leaves_nothing_behind() {
    let mut rig = Rig::new(2);
    rig.ask_together(0..=99, |_| false).await;
    rig.ask_together(0..=9, |_| false).await;
    rig.callers.clear();
    assert!(rig.set_out().is_empty() && rig.set_out().is_empty());
    assert_eq!(rig.gatherer.waiting.waiting_requests(), 0);
}
