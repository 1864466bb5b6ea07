//! How long an answer takes at half of what is possible, from the moment at which it was due to be asked.
#![expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]

use std::time::{Duration, Instant};

use redis::AsyncConnectionConfig;
use redis::aio::MultiplexedConnection;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::callers::{Application, CALLERS, KEYS};
use super::rig::Rig;
use crate::traffic::uniform;

/// Microseconds.
pub(crate) struct Latency {
    pub(crate) p50: f64,
    pub(crate) p95: f64,
    pub(crate) p99: f64,
}

/// How many arrive, and how fast.
pub(crate) struct Arrivals {
    pub(crate) per_second: f64,
    pub(crate) count: usize,
    /// Another one draws other keys.
    pub(crate) seed: usize,
}

/// What is asked at each arrival.
#[derive(Clone)]
pub(crate) enum Question {
    Check(Application),
    Ping(MultiplexedConnection),
}

impl Question {
    /// The same client library, the same kind of connection, with nothing to decide.
    pub(crate) fn ping(rig: &Rig) -> Self {
        let client = redis::Client::open(rig.server.url()).expect("a valid address");
        // As Slidegate sets it up, and as patient.
        let config = AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
        let connection = rig.runtime.block_on(client.get_multiplexed_async_connection_with_config(&config));
        Self::Ping(connection.expect("a server"))
    }

    async fn ask(&mut self, number: u32) {
        match self {
            Self::Check(application) => application.check(number).await,
            Self::Ping(connection) => {
                redis::cmd("PING").exec_async(connection).await.expect("an answer");
            }
        }
    }
}

/// Asks at fixed times, the callers in turn. Whoever is still waiting for its last answer asks late,
/// and that counts: the clock of a question starts when it was due.
pub(crate) fn open_loop(rig: &Rig, question: &Question, arrivals: &Arrivals) -> Latency {
    let Arrivals { per_second, count: arrivals, seed: first_seed } = *arrivals;
    let times = rig.runtime.block_on(async {
        let mut tasks = JoinSet::new();
        let mut callers = Vec::new();
        for seed in 1..=CALLERS {
            let (caller, due) = mpsc::unbounded_channel();
            callers.push(caller);
            let draws = uniform(KEYS, arrivals.div_ceil(CALLERS), (first_seed * CALLERS + seed) as u64);
            tasks.spawn(answer_times(question.clone(), draws, due));
        }
        let gap = Duration::from_secs_f64(1.0 / per_second);
        let mut due = Instant::now() + gap;
        for arrival in 0..arrivals {
            // A timer is too coarse by far. Whatever else there is to do comes first at each turn, input included.
            while Instant::now() < due {
                tokio::task::yield_now().await;
            }
            callers[arrival % CALLERS].send(due).expect("callers wait for more");
            due += gap;
        }
        drop(callers);
        tasks.join_all().await
    });
    let mut times: Vec<u64> = times.into_iter().flatten().collect();
    times.sort_unstable();
    let micros = |place: usize| Duration::from_nanos(times[place]).as_secs_f64() * 1e6;
    let percent = |percent: usize| micros(times.len() * percent / 100);
    Latency { p50: percent(50), p95: percent(95), p99: percent(99) }
}

async fn answer_times(
    mut question: Question,
    draws: Vec<u32>,
    mut due: mpsc::UnboundedReceiver<Instant>,
) -> Vec<u64> {
    let mut times = Vec::with_capacity(draws.len());
    for number in draws {
        let Some(due) = due.recv().await else { break };
        question.ask(number).await;
        times.push(due.elapsed().as_nanos() as u64);
    }
    times
}
