//! Closed-loop callers of Slidegate: each sends its next request after its last response.

use std::sync::Arc;

use slidegate::Policy;
use slidegate::store::{RedisStore, StoreLimiter};
use tokio::task::JoinSet;

use super::rig::Rig;
use crate::sample::{Sample, timed};
use crate::traffic::{key, uniform};

pub(crate) const CALLERS: usize = 64;
pub(crate) const KEYS: usize = 100_000;
const QUOTA: &str = "100/1m";

/// Limiter and policy, as in an application.
#[derive(Clone)]
pub(crate) struct Application {
    limiter: Arc<StoreLimiter<RedisStore>>,
    policy: Arc<Policy>,
}

impl Application {
    /// Connects, with a policy that no other part of the run has used.
    pub(crate) fn new(rig: &Rig, policy: &str) -> Self {
        let store = rig.runtime.block_on(RedisStore::connect(&rig.long_budget_url())).expect("a server");
        let policy = Policy::parse(policy, [QUOTA]).expect("a valid quota");
        Self { limiter: Arc::new(StoreLimiter::new(store)), policy: Arc::new(policy) }
    }

    pub(crate) async fn check(&self, number: u32) {
        let key = key(number as usize);
        let decision = self.limiter.check(self.policy.key(&key)).await.expect("a response");
        assert!(decision.is_allowed(), "a denial is cheaper and would distort the result");
    }

    /// Checks each key once, so that all exist.
    pub(crate) fn fill(&self, rig: &Rig) {
        let keys: Vec<String> = (0..KEYS).map(key).collect();
        for some in keys.chunks(1000) {
            let checks: Vec<_> = some.iter().map(|key| self.policy.key(key)).collect();
            let decisions = rig.runtime.block_on(self.limiter.check_many(&checks));
            assert!(decisions.iter().all(Result::is_ok), "all keys are there");
        }
    }
}

/// Runs `callers` callers at the same time, spread over `applications`, until they have made `decisions` decisions in
/// total.
pub(crate) fn run_callers(
    rig: &Rig,
    applications: &[Application],
    callers: usize,
    decisions: usize,
) -> Sample {
    let each = decisions / callers;
    let draws: Vec<Vec<u32>> = (1..=callers).map(|seed| uniform(KEYS, each, seed as u64)).collect();
    let work = async {
        let mut tasks = JoinSet::new();
        for (mine, application) in draws.into_iter().zip(applications.iter().cycle()) {
            let application = application.clone();
            tasks.spawn(async move {
                for number in mine {
                    application.check(number).await;
                }
            });
        }
        tasks.join_all().await;
    };
    rig.sample(each * callers, || rig.runtime.block_on(timed(each * callers, work)))
}
