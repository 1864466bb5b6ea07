//! Closed-loop callers: each sends its next request after its last response.

use std::sync::Arc;

use slidegate::Policy;
use slidegate::store::{PostgresStore, StoreLimiter};
use tokio::task::JoinSet;

use super::rig::Rig;
use crate::sample::{Sample, timed};
use crate::traffic::{key, uniform};

pub(crate) const CALLERS: usize = 64;
pub(crate) const KEYS: usize = 1000;
/// Never reached, because a denial is cheaper and would distort the result.
pub(crate) const LIMIT: i64 = 1_000_000_000;
pub(crate) const WINDOW_MS: i64 = 60_000;

/// System under test.
pub(crate) trait Subject: Clone + Send + 'static {
    fn check(&self, number: u32) -> impl Future<Output = ()> + Send;
}

/// Limiter and policy, as in an application.
#[derive(Clone)]
pub(crate) struct Application {
    limiter: Arc<StoreLimiter<PostgresStore>>,
    policy: Arc<Policy>,
}

impl Application {
    pub(crate) fn new(rig: &Rig, connections: usize) -> Self {
        // Long enough that other work on the machine does not end the run with a timeout.
        let url = format!("{}?budget_ms=10000&connections={connections}", rig.server.url());
        let store = rig.runtime.block_on(PostgresStore::connect(&url)).expect("a server");
        let policy =
            Policy::parse("api", [format!("{LIMIT}/{WINDOW_MS}ms").as_str()]).expect("a valid quota");
        Self { limiter: Arc::new(StoreLimiter::new(store)), policy: Arc::new(policy) }
    }
}

impl Subject for Application {
    async fn check(&self, number: u32) {
        let key = key(number as usize);
        let decision = self.limiter.check(self.policy.key(&key)).await.expect("a response");
        assert!(decision.is_allowed(), "nothing is denied");
    }
}

/// Runs all callers at the same time until they have made `decisions` decisions in total.
pub(crate) fn run_callers(rig: &Rig, subject: &impl Subject, keys: usize, decisions: usize) -> Sample {
    let each = decisions / CALLERS;
    let draws: Vec<Vec<u32>> = (1..=CALLERS).map(|seed| uniform(keys, each, seed as u64)).collect();
    let work = async {
        let mut tasks = JoinSet::new();
        for mine in draws {
            let subject = subject.clone();
            tasks.spawn(async move {
                for number in mine {
                    subject.check(number).await;
                }
            });
        }
        tasks.join_all().await;
    };
    rig.sample(each * CALLERS, || rig.runtime.block_on(timed(each * CALLERS, work)))
}
