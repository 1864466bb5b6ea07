//! Nodes that share a store, and callers that send requests continuously.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use slidegate::resilience::{BreakerSettings, BreakerState, FailureRule, Fallback};
use slidegate::store::{Store, StoreLimiter};
use slidegate::{Clock, Policy, PreciseClock};
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

use crate::backend::Backend;
use crate::tally::{Caller, MODES, Tally};

pub(crate) const NODES: u32 = 3;
/// Longer than any run, so all admissions fall into one window.
const WINDOW: &str = "1h";
pub(crate) const LIMIT: u64 = 600;
pub(crate) const BUDGET: Duration = Duration::from_millis(20);
/// Callers of the hot key per node and mode.
const HOT_CALLERS: usize = 3;
/// Pause between a response and the next request, so that immediate responses do not starve the machine.
const PAUSE_MS: u64 = 5;
/// About the number of requests in flight.
const TIMERS: usize = 9;

pub(crate) struct Load {
    runtime: Runtime,
    tally: Arc<Mutex<Tally>>,
    is_stopped: Arc<AtomicBool>,
    tasks: JoinSet<()>,
    breakers: Vec<Box<dyn Fn() -> BreakerState>>,
}

impl Load {
    pub(crate) fn start<B: Backend>(server: &B, breaker: BreakerSettings) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let (tally, is_stopped) = (Arc::new(Mutex::new(Tally::default())), Arc::new(AtomicBool::new(false)));
        let (mut tasks, mut breakers) = (JoinSet::new(), Vec::<Box<dyn Fn() -> BreakerState>>::new());
        for node in 0..NODES as usize {
            let limiter = Arc::new(runtime.block_on(limiter(server, breaker)));
            for (mode, on_failure) in MODES.iter().enumerate() {
                let watched = Arc::clone(&limiter);
                breakers.push(Box::new(move || watched.store().breaker_state_of(on_failure.name())));
                let quota = format!("{LIMIT}/{WINDOW} strict-window");
                let policy = Arc::new(Policy::parse(on_failure.name(), [quota.as_str()]).unwrap());
                for number in 0..=HOT_CALLERS {
                    let caller = Caller { node, mode, is_for_hot_key: number < HOT_CALLERS };
                    let (limiter, policy, tally) =
                        (Arc::clone(&limiter), Arc::clone(&policy), Arc::clone(&tally));
                    tasks.spawn_on(
                        call(caller, limiter, policy, tally, Arc::clone(&is_stopped)),
                        runtime.handle(),
                    );
                }
            }
        }
        for _ in 0..TIMERS {
            tasks.spawn_on(measure_timer(Arc::clone(&tally), Arc::clone(&is_stopped)), runtime.handle());
        }
        Self { runtime, tally, is_stopped, tasks, breakers }
    }

    pub(crate) fn tally(&self) -> Tally {
        self.tally.lock().unwrap().clone()
    }

    /// Returns the breaker states of all nodes and modes.
    pub(crate) fn breakers(&self) -> Vec<BreakerState> {
        self.breakers.iter().map(|state| state()).collect()
    }

    /// Stops the callers after their last response and returns the tally.
    pub(crate) fn end(self) -> Tally {
        self.is_stopped.store(true, Relaxed);
        self.runtime.block_on(self.tasks.join_all());
        self.tally.lock().unwrap().clone()
    }
}

async fn limiter<B: Backend>(server: &B, breaker: BreakerSettings) -> StoreLimiter<Fallback<B::Store>> {
    let mut fallback = Fallback::builder(server.connect().await).nodes(NODES).breaker(breaker);
    for on_failure in MODES {
        fallback = fallback.policy(on_failure.name(), FailureRule::new(on_failure).budget(BUDGET));
    }
    StoreLimiter::new(fallback.build().unwrap())
}

async fn call<S: Store>(
    caller: Caller,
    limiter: Arc<StoreLimiter<S>>,
    policy: Arc<Policy>,
    tally: Arc<Mutex<Tally>>,
    is_stopped: Arc<AtomicBool>,
) {
    let clock = PreciseClock::default();
    let mut sent = 0;
    while !is_stopped.load(Relaxed) {
        let key = if caller.is_for_hot_key { "hot".to_owned() } else { format!("{} {sent}", caller.node) };
        let sent_ms = clock.now_ms();
        let response = limiter.check(policy.key(&key)).await;
        let took_ms = clock.now_ms() - sent_ms;
        tally.lock().unwrap().add(caller, &response, took_ms);
        sent += 1;
        clock.sleep(PAUSE_MS).await;
    }
}

/// Measures a timer of the layer's budget on the equally loaded machine.
async fn measure_timer(tally: Arc<Mutex<Tally>>, is_stopped: Arc<AtomicBool>) {
    let clock = PreciseClock::default();
    while !is_stopped.load(Relaxed) {
        let begun_ms = clock.now_ms();
        clock.sleep(BUDGET.as_millis() as u64).await;
        let took_ms = clock.now_ms() - begun_ms;
        let mut tally = tally.lock().unwrap();
        tally.longest_timer_ms = tally.longest_timer_ms.max(took_ms);
    }
}
