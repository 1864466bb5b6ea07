//! Callers, each of whom asks again as soon as it has its answer.

use std::sync::Arc;

use slidegate::{Limiter, Policy, PostgresStore};
use tokio::task::JoinSet;

use super::rig::Rig;
use crate::sample::{Sample, timed};
use crate::traffic::{key, uniform};

pub(crate) const CALLERS: usize = 64;
pub(crate) const KEYS: usize = 1000;
/// Never reached: what is denied costs less and must not be measured along.
pub(crate) const LIMIT: i64 = 1_000_000_000;
pub(crate) const WINDOW_MS: i64 = 60_000;

/// Something that decides.
pub(crate) trait Subject: Clone + Send + 'static {
    fn check(&self, number: u32) -> impl Future<Output = ()> + Send;
}

/// What an application has: a limiter and a policy.
#[derive(Clone)]
pub(crate) struct Application {
    limiter: Arc<Limiter<PostgresStore>>,
    policy: Arc<Policy>,
}

impl Application {
    pub(crate) fn new(rig: &Rig, connections: usize) -> Self {
        // Tolerates what would be an error elsewhere: other work on the machine must not end the run.
        let url = format!("{}?budget_ms=10000&connections={connections}", rig.server.url());
        let store = rig.runtime.block_on(PostgresStore::connect(&url)).expect("a server");
        let policy =
            Policy::parse("api", [format!("{LIMIT}/{WINDOW_MS}ms").as_str()]).expect("a valid quota");
        Self { limiter: Arc::new(Limiter::new(store)), policy: Arc::new(policy) }
    }
}

impl Subject for Application {
    async fn check(&self, number: u32) {
        let key = key(number as usize);
        let decision = self.limiter.check(self.policy.key(&key)).await.expect("an answer");
        assert!(decision.is_allowed(), "nothing is denied");
    }
}

/// All callers at the same time, `decisions` in all.
pub(crate) fn ask(rig: &Rig, subject: &impl Subject, keys: usize, decisions: usize) -> Sample {
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
