//! Scheduling of requests, without I/O: when another call is worth its overhead, how many requests it takes, and their
//! distribution over batches.

use smallvec::SmallVec;

/// Usual number of calls in flight. With two, one is prepared and its responses are read while the server executes the
/// other.
pub(crate) const USUAL_CALLS: usize = 2;
/// Number of ordinary requests at which a batch is full. Larger batches would save little and delay other requests: these
/// occupy Redis for about 0.3 ms, or 1 ms as 64 script calls of a cluster, and a connection to PostgreSQL for about 2 ms.
pub(crate) const FULL_BATCH: usize = 64;

/// Calls in flight and their requests.
#[derive(Debug, Default)]
pub(crate) struct Load {
    pub(crate) calls: usize,
    pub(crate) requests: usize,
}

impl Load {
    /// Adds a call.
    pub(crate) fn add(&mut self, requests: usize) {
        self.calls += 1;
        self.requests += requests;
    }

    /// Removes a call that is no longer in flight.
    pub(crate) fn remove(&mut self, requests: usize) {
        self.calls -= 1;
        self.requests -= requests;
    }

    /// Returns whether `waiting` requests are worth a call: at least half the average of the calls in flight, because the
    /// overhead of a call exceeds the cost of a few requests.
    pub(crate) fn is_worth_a_call(&self, waiting: usize) -> bool {
        // A call with several batches counts as one full batch.
        let carried = self.requests.min(self.calls * FULL_BATCH);
        2 * self.calls * waiting >= carried
    }

    /// Returns the number of requests of the next call, of which there are `waiting`. All requests that wait or are in
    /// flight are shared equally by `calls` calls, so that neither the server nor the client is idle.
    pub(crate) fn share(&self, waiting: usize, calls: usize) -> usize {
        (self.requests + waiting).div_ceil(calls).min(FULL_BATCH)
    }
}

/// Requests that are executed together. Each batch has at least one.
pub(crate) trait Batch {
    type Request;

    fn of(request: Self::Request) -> Self;

    fn add(&mut self, request: Self::Request);

    fn is_full(&self) -> bool;

    fn has_key_of(&self, request: &Self::Request) -> bool;

    /// Returns whether another request fits although the batch is full.
    fn has_place(&self) -> bool;
}

/// Batches that are filled one after another. A single one is held in place.
pub(crate) type Batches<B> = SmallVec<[B; 1]>;

/// Adds a request to the last batch, or to a new one if that is full.
///
/// With `may_repeat`, a full batch takes further requests of its keys: a batch that is rejected is sent again, and a later
/// batch must not overtake it.
pub(crate) fn add_to_batches<B: Batch>(batches: &mut Batches<B>, request: B::Request, may_repeat: bool) {
    let is_full_with_key = |batch: &B| may_repeat && batch.is_full() && batch.has_key_of(&request);
    if let Some(earlier) = batches.iter().rposition(is_full_with_key)
        && batches[earlier].has_place()
        && !batches[earlier + 1..].iter().any(|batch| batch.has_key_of(&request))
    {
        return batches[earlier].add(request);
    }
    match batches.last_mut() {
        Some(last) if !last.is_full() => last.add(request),
        _ => batches.push(B::of(request)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(calls: &[usize]) -> Load {
        let mut load = Load::default();
        for requests in calls {
            load.add(*requests);
        }
        load
    }

    #[test]
    fn a_call_has_at_least_half_the_average_of_those_in_flight() {
        // The calls in flight, and the least number of waiting requests that is worth another call.
        let table: [(&[usize], usize); 6] =
            [(&[], 0), (&[1], 1), (&[9], 5), (&[10, 20], 8), (&[64, 64, 64], 32), (&[1000], 32)];
        for (calls, least) in table {
            let load = load(calls);
            assert!(load.is_worth_a_call(least), "{calls:?}");
            assert!(least == 0 || !load.is_worth_a_call(least - 1), "{calls:?}");
        }
    }

    #[test]
    fn calls_share_all_requests_equally_up_to_a_full_batch() {
        assert_eq!(load(&[]).share(1, 2), 1);
        assert_eq!(load(&[]).share(20, 2), 10);
        assert_eq!(load(&[10]).share(10, 2), 10);
        assert_eq!(load(&[10]).share(31, 2), 21);
        assert_eq!(load(&[]).share(20, 1), 20);
        assert_eq!(load(&[1000]).share(20, 2), FULL_BATCH);
    }

    #[test]
    fn a_call_that_has_ended_is_no_longer_counted() {
        let mut load = load(&[10, 20]);
        load.remove(10);
        assert_eq!((load.calls, load.requests), (1, 20));
    }

    /// Batch that is full with three keys and takes up to five.
    impl Batch for Vec<u8> {
        type Request = u8;

        fn of(key: u8) -> Self {
            vec![key]
        }

        fn add(&mut self, key: u8) {
            self.push(key);
        }

        fn is_full(&self) -> bool {
            self.len() >= 3
        }

        fn has_key_of(&self, key: &u8) -> bool {
            self.contains(key)
        }

        fn has_place(&self) -> bool {
            self.len() < 5
        }
    }

    fn batches(keys: &[u8], may_repeat: bool) -> Vec<Vec<u8>> {
        let mut batches = Batches::new();
        for key in keys {
            add_to_batches(&mut batches, *key, may_repeat);
        }
        batches.into_vec()
    }

    #[test]
    fn a_full_batch_is_followed_by_another() {
        assert_eq!(batches(&[1, 2, 3, 4, 5], true), [vec![1, 2, 3], vec![4, 5]]);
    }

    #[test]
    fn a_full_batch_takes_requests_of_its_keys_while_it_has_a_place() {
        assert_eq!(batches(&[1, 2, 3, 4, 1, 3, 1, 1], true), [vec![1, 2, 3, 1, 3], vec![4, 1, 1]]);
        assert_eq!(batches(&[1, 2, 3, 1], true), [[1, 2, 3, 1]]);
        assert_eq!(batches(&[1, 2, 3, 1], false), [vec![1, 2, 3], vec![1]]);
    }

    #[test]
    fn a_repeated_key_joins_the_latest_batch_that_contains_it() {
        let mut batches: Batches<Vec<u8>> = Batches::new();
        for key in [1, 2, 3, 1] {
            add_to_batches(&mut batches, key, false);
        }
        add_to_batches(&mut batches, 1, true);
        assert_eq!(*batches, [vec![1, 2, 3], vec![1, 1]], "the latest batch is not full");
        for key in [4, 1] {
            add_to_batches(&mut batches, key, true);
        }
        assert_eq!(batches.into_vec(), [vec![1, 2, 3], vec![1, 1, 4, 1]]);
    }
}
