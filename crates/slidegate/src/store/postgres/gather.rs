//! Gathers what waits into calls, one for each free connection.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::sync::Mutex;

use super::batch::{Batch, Name, Request};
use super::call::call;
use super::pool::Shared;
use crate::store::remote::{Line, Waiting};
use crate::store::supervise::supervise;

/// So many keep a connection busy for some 2 ms.
const MAX_BATCH: usize = 64;
/// One is served while the other is prepared.
const USUAL_CALLS: usize = 2;
/// So many may wait for their keys to be free; then the queue is not read.
const MAX_STAGED: usize = 1024;

/// Starts the task that serves the queue, for as long as somebody holds its sender.
pub(super) fn start(waiting: Line<Request>, shared: Arc<Shared>) {
    let gatherer = Arc::new(Mutex::new(Gatherer::new(waiting, shared)));
    supervise("the task of a postgres store", move || {
        let gatherer = Arc::clone(&gatherer);
        async move { gatherer.lock().await.run().await }
    });
}

/// For any key the order is: what is under way, what is blocked, what is ready, what waits.
struct Gatherer {
    waiting: Line<Request>,
    ready: Ready,
    /// Batches that need a call of their own. They keep their room in the queue.
    large: VecDeque<Waiting<Request>>,
    was_large: bool,
    blocked: Blocked,
    shared: Arc<Shared>,
}

impl Gatherer {
    fn new(waiting: Line<Request>, shared: Arc<Shared>) -> Self {
        let (ready, blocked, large) = (Ready::default(), Blocked::default(), VecDeque::new());
        Self { waiting, ready, large, was_large: false, blocked, shared }
    }

    async fn run(&mut self) {
        let mut in_flight = FuturesUnordered::new();
        let mut sent = Sent::default();
        // Of a task that failed: nothing is under way any more.
        self.release(&self.blocked.by_name.keys().copied().collect::<Vec<_>>());
        loop {
            while in_flight.len() < self.shared.connections && self.is_worth_a_call(in_flight.len(), &sent) {
                let calls = self.gather(&sent);
                if calls.is_empty() {
                    break;
                }
                for Call { batches, carried } in calls {
                    sent.add(&carried);
                    let calling = call(Arc::clone(&self.shared), batches);
                    in_flight.push(async {
                        calling.await;
                        carried
                    });
                }
            }
            let has_room = in_flight.len() < self.shared.connections && !self.is_full();
            tokio::select! {
                biased;
                Some(carried) = in_flight.next() => {
                    sent.remove(&carried);
                    self.release(&carried.names);
                    if self.ready.requests + self.waiting.requests() < carried.requests {
                        // Let those who were just answered ask again, so that they go together.
                        tokio::task::yield_now().await;
                    }
                }
                waiting = self.waiting.next(), if has_room => match waiting {
                    Some(waiting) => self.stage(waiting, &sent),
                    None => return,
                },
            }
        }
    }

    fn is_full(&self) -> bool {
        self.ready.requests + self.blocked.requests >= MAX_STAGED
    }

    /// Beyond the usual calls one more has to carry half as much as those under way, for its fixed part weighs most.
    fn is_worth_a_call(&self, calls: usize, sent: &Sent) -> bool {
        let usual = sent.requests.min(calls * MAX_BATCH);
        calls < USUAL_CALLS || 2 * calls * (self.ready.requests + self.waiting.requests()) >= usual
    }

    /// A large batch, if one may go, or what else there is.
    fn gather(&mut self, sent: &Sent) -> Vec<Call> {
        // With one connection they take turns; else there is always one for those who are not large.
        let is_their_turn = self.shared.connections == 1 && self.was_large;
        let large = if is_their_turn { None } else { self.gather_large(sent) };
        let usual = if large.is_none() { self.gather_usual(sent) } else { Vec::new() };
        // It is known only now what the queue had.
        let large = if usual.is_empty() { large.or_else(|| self.gather_large(sent)) } else { None };
        self.was_large = large.is_some();
        large.into_iter().chain(usual).collect()
    }

    fn gather_large(&mut self, sent: &Sent) -> Option<Call> {
        let most = (self.shared.connections - 1).max(1);
        while sent.large < most
            && let Some(waiting) = self.large.pop_front()
        {
            let mut next = Next::default();
            self.waiting.let_in(&waiting);
            self.take(waiting, sent, &mut next);
            if next.requests > 0 {
                let batches = next.batches.into_iter().flatten().collect();
                return Some(Call::of(batches, true));
            }
        }
        None
    }

    /// Takes a fair share of all that is waiting or under way, for each table apart: nobody has to wait for a disk who need
    /// not. A key is in one call at a time: its requests are decided in the order in which they came, and its row is locked
    /// by one connection and not by all.
    fn gather_usual(&mut self, sent: &Sent) -> Vec<Call> {
        let mut next = Next::default();
        while next.requests < MAX_BATCH
            && let Some(waiting) = self.ready.pop_if(|waiting| next.has_room_for(waiting))
        {
            self.take(waiting, sent, &mut next);
        }
        let all = self.waiting.requests() + next.requests + sent.requests;
        let share = all.div_ceil(self.shared.connections.min(USUAL_CALLS)).min(MAX_BATCH);
        while next.requests < share && self.ready.requests == 0 && !self.is_full() {
            let Some(waiting) = self.waiting.next_now() else { break };
            if is_large(&waiting) {
                self.large.push_back(waiting);
                continue;
            }
            self.waiting.let_in(&waiting);
            if next.has_room_for(&waiting) {
                self.take(waiting, sent, &mut next);
            } else {
                self.ready.push(waiting);
            }
        }
        let has_any = |batches: &Vec<Batch>| !batches.is_empty();
        next.batches.into_iter().filter(has_any).map(|batches| Call::of(batches, false)).collect()
    }

    fn take(&mut self, waiting: Waiting<Request>, sent: &Sent, next: &mut Next) {
        waiting.for_each(|request| {
            if sent.names.contains(&request.name) {
                self.blocked.add(request);
            } else {
                next.add(request);
            }
        });
    }

    /// Keeps it until a call is worth it. If its keys are under way, apart, unless others of these keys may be before it.
    fn stage(&mut self, waiting: Waiting<Request>, sent: &Sent) {
        if is_large(&waiting) {
            return self.large.push_back(waiting);
        }
        self.waiting.let_in(&waiting);
        let is_under_way = |request: &Request| sent.names.contains(&request.name);
        match waiting {
            Waiting::One(request) if self.ready.requests == 0 && is_under_way(&request) => {
                self.blocked.add(request);
            }
            _ => self.ready.push(waiting),
        }
    }

    /// Those who waited for these keys go before all who came later.
    fn release(&mut self, names: &[Name]) {
        for request in names.iter().rev().flat_map(|name| self.blocked.remove(name).into_iter().rev()) {
            self.ready.push_first(Waiting::One(request));
        }
    }
}

/// Whether it takes more than one transaction: others must not wait for all of these.
fn is_large(waiting: &Waiting<Request>) -> bool {
    match waiting {
        Waiting::One(_) => false,
        Waiting::Many(requests) => {
            let has = |is_durable| requests.iter().any(|request| request.is_durable == is_durable);
            requests.len() > MAX_BATCH || (has(true) && has(false))
        }
    }
}

/// Taken from the queue and not under way.
#[derive(Default)]
struct Ready {
    waiting: VecDeque<Waiting<Request>>,
    requests: usize,
}

impl Ready {
    fn push(&mut self, waiting: Waiting<Request>) {
        self.requests += waiting.count();
        self.waiting.push_back(waiting);
    }

    fn push_first(&mut self, waiting: Waiting<Request>) {
        self.requests += waiting.count();
        self.waiting.push_front(waiting);
    }

    fn pop_if(&mut self, is_wanted: impl FnOnce(&Waiting<Request>) -> bool) -> Option<Waiting<Request>> {
        let waiting = self.waiting.pop_front_if(|waiting| is_wanted(waiting))?;
        self.requests -= waiting.count();
        Some(waiting)
    }
}

/// Taken from the queue, and their key is under way.
#[derive(Default)]
struct Blocked {
    by_name: HashMap<Name, Vec<Request>>,
    requests: usize,
}

impl Blocked {
    fn add(&mut self, request: Request) {
        self.requests += 1;
        self.by_name.entry(request.name).or_default().push(request);
    }

    fn remove(&mut self, name: &Name) -> Vec<Request> {
        let removed = self.by_name.remove(name).unwrap_or_default();
        self.requests -= removed.len();
        removed
    }
}

/// What goes out next, for each table, none of it larger than a statement should be.
#[derive(Default)]
struct Next {
    batches: [Vec<Batch>; 2],
    requests: usize,
}

impl Next {
    /// Whoever does not fit waits for the next call, so that those who were asked for together are one statement.
    fn has_room_for(&self, waiting: &Waiting<Request>) -> bool {
        self.requests + waiting.count() <= MAX_BATCH
    }

    /// Adds a request, unless its caller has given up.
    fn add(&mut self, request: Request) {
        if !request.reply.leave() {
            return;
        }
        self.requests += 1;
        let batches = &mut self.batches[usize::from(request.is_durable)];
        // One statement has all there is for a key, however much: what is sent again cannot change their order.
        let is_before = |batch: &Batch| batch.requests >= MAX_BATCH && batch.has(request.name);
        if let Some(place) = batches.iter().position(is_before) {
            return batches[place].add(request);
        }
        match batches.last_mut() {
            Some(last) if last.requests < MAX_BATCH => last.add(request),
            _ => batches.push(Batch::of(request)),
        }
    }
}

/// What leaves on one connection.
struct Call {
    batches: Vec<Batch>,
    carried: Carried,
}

impl Call {
    fn of(batches: Vec<Batch>, is_large: bool) -> Self {
        let names = batches.iter().flat_map(Batch::names).collect();
        let requests = batches.iter().map(|batch| batch.requests).sum();
        Self { batches, carried: Carried { names, requests, is_large } }
    }
}

/// What a call carries.
struct Carried {
    names: Vec<Name>,
    requests: usize,
    is_large: bool,
}

/// What is under way.
#[derive(Default)]
struct Sent {
    names: HashSet<Name>,
    requests: usize,
    /// How many calls are large.
    large: usize,
}

impl Sent {
    fn add(&mut self, carried: &Carried) {
        self.names.extend(&carried.names);
        self.requests += carried.requests;
        self.large += usize::from(carried.is_large);
    }

    fn remove(&mut self, carried: &Carried) {
        for name in &carried.names {
            self.names.remove(name);
        }
        self.requests -= carried.requests;
        self.large -= usize::from(carried.is_large);
    }
}

#[cfg(test)]
mod tests {
    use slidegate_core::Verb;

    use super::*;
    use crate::store::postgres::PostgresStoreBuilder;
    use crate::store::postgres::batch::Answer;
    use crate::store::remote::{Pending, Queue, channel, queue};

    struct Rig {
        gatherer: Gatherer,
        queue: Queue<Request>,
        /// Who gives up is left out.
        callers: Vec<Pending<Answer>>,
        sent: Sent,
    }

    impl Rig {
        fn new(connections: usize) -> Self {
            let builder =
                PostgresStoreBuilder::parse("postgres://localhost").unwrap().connections(connections);
            let (queue, waiting) = queue("postgres", 8192);
            let gatherer = Gatherer::new(waiting, Arc::new(Shared::new(&builder).unwrap()));
            Self { gatherer, queue, callers: Vec::new(), sent: Sent::default() }
        }

        /// One that can be told from others by its number.
        fn request(&mut self, key: u8, number: i64, is_durable: bool) -> Request {
            let (reply, pending) = channel();
            self.callers.push(pending);
            let name = Name([key; 16]);
            Request { name, is_durable, verb: Verb::Check, description: vec![number], reply }
        }

        async fn ask_together(&mut self, keys: impl IntoIterator<Item = u8>, is_durable: fn(u8) -> bool) {
            let requests = keys.into_iter().map(|key| self.request(key, 0, is_durable(key))).collect();
            self.queue.send_together(requests).await;
        }

        fn stage(&mut self, key: u8, number: i64) {
            let request = self.request(key, number, false);
            self.gatherer.stage(Waiting::One(request), &self.sent);
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
        assert_eq!(rig.gatherer.waiting.requests(), 0, "all the room is free again");
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
            rig.queue.send_now(request);
        }
        rig.ask_together(4..=9, |key| key % 2 == 0).await;
        let calls = rig.set_out();
        assert_eq!(calls.iter().map(|call| call.batches.len()).collect::<Vec<_>>(), [1, 1]);
        assert_eq!(calls.iter().map(|call| call.carried.requests).sum::<usize>(), 3);
        let together = rig.set_out();
        assert_eq!((together.len(), together[0].batches.len(), together[0].carried.requests), (1, 2, 6));
    }

    #[tokio::test]
    async fn a_batch_whose_caller_has_gone_leaves_nothing_behind() {
        let mut rig = Rig::new(2);
        rig.ask_together(0..=99, |_| false).await;
        rig.ask_together(0..=9, |_| false).await;
        rig.callers.clear();
        assert!(rig.set_out().is_empty() && rig.set_out().is_empty());
        assert_eq!(rig.gatherer.waiting.requests(), 0);
    }
}
