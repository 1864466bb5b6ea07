//! Distribution of requests over batches.

use super::{Batch, Request};

/// Weight at which a batch is full. 64 ordinary requests occupy the server for about 0.3 ms, or about 1 ms as 64 script
/// calls of a cluster. Larger batches would save little and delay other requests.
pub(in super::super) const MAX_BATCH_WEIGHT: usize = 64;
/// Largest number of requests in a batch: the script refers to a request by one byte.
const MAX_BATCH_REQUESTS: usize = 255;
/// Number of leading requests of a group in which keys may repeat. Those of one key always fit into one batch.
pub(in super::super) const GROUP_REPEAT_RANGE: usize = MAX_BATCH_REQUESTS - MAX_BATCH_WEIGHT;

/// Distributes requests over batches of limited weight.
#[derive(Default)]
pub(in super::super) struct Batcher {
    full: Vec<Batch>,
    last: Batch,
}

impl Batcher {
    /// Adds a request, unless its caller has given up. With `may_repeat`, the request joins a batch that contains its key.
    pub(in super::super) fn add(&mut self, request: Request, may_repeat: bool) {
        if !request.responder.mark_dispatched() {
            return;
        }
        let has_its_key =
            |batch: &Batch| may_repeat && batch.requests < MAX_BATCH_REQUESTS && batch.has_key(&request.name);
        if let Some(earlier) = self.full.iter().rposition(has_its_key) {
            return self.full[earlier].add(request);
        }
        if self.last.weight >= MAX_BATCH_WEIGHT && !has_its_key(&self.last) {
            self.full.push(std::mem::take(&mut self.last));
        }
        self.last.add(request);
    }

    /// Returns whether there are `requests` requests, or a full batch.
    pub(in super::super) fn is_filled(&self, requests: usize) -> bool {
        !self.full.is_empty() || self.last.requests >= requests || self.last.weight >= MAX_BATCH_WEIGHT
    }

    pub(in super::super) fn into_batches(self) -> impl Iterator<Item = Batch> {
        self.full.into_iter().chain(Some(self.last).filter(|last| last.requests > 0))
    }
}

#[cfg(test)]
mod tests {
    use slidegate_core::{Policy, Verb};

    use super::*;
    use crate::store::Operation;
    use crate::store::redis::RedisStore;
    use crate::store::remote::RemoteStore;

    /// Two batches of one key could change their order: the server may reject the first as a whole after the second was
    /// sent.
    #[tokio::test]
    async fn redirected_requests_of_one_key_share_a_batch() {
        let store = RedisStore::builder("redis://127.0.0.1:1").unwrap().connect_lazily();
        let policy = Policy::parse("order", ["1000/1m"]).unwrap();
        let (mut batcher, mut pending) = (Batcher::default(), Vec::new());
        let mut add = |key: &str, redirects| {
            let operation = Operation::new(Verb::Check, policy.key(key));
            let (mut request, response) = store.request(&operation);
            request.redirects = redirects;
            pending.push(response);
            batcher.add(request, redirects > 0);
        };
        (0..MAX_BATCH_WEIGHT).for_each(|number| add(&number.to_string(), 0));
        for number in 0..GROUP_REPEAT_RANGE {
            add("hot", 1);
            add(&format!("cold {number}"), 0);
        }
        let name = store.names.name(&policy, b"hot");
        let batches: Vec<Batch> = batcher.into_batches().collect();
        let hot = |batch: &Batch| {
            let requests = batch.calls.iter().flat_map(|call| &call.requests);
            requests.filter(|request| request.name == name).count()
        };
        let counts: Vec<usize> = batches.iter().map(hot).filter(|count| *count > 0).collect();
        assert_eq!(counts, [GROUP_REPEAT_RANGE]);
        assert!(batches.iter().all(|batch| batch.requests <= MAX_BATCH_REQUESTS));
    }
}
