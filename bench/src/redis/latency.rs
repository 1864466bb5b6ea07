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

/// Seldom enough that it leaves the server to what is asked of it otherwise.
const PING_AMONG: usize = 32;

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

/// Asks at fixed times.
pub(crate) fn open_loop(rig: &Rig, question: &Question, arrivals: &Arrivals) -> Latency {
    rig.runtime.block_on(async {
        let mut callers = Callers::new(question, arrivals);
        arrivals.each(|_, due| callers.ask(due)).await;
        callers.latency().await
    })
}

/// The same, and a `PING` beside every [`PING_AMONG`]th, on a connection of its own.
pub(crate) fn open_loop_beside(
    rig: &Rig,
    [question, ping]: &[Question; 2],
    arrivals: &Arrivals,
) -> [Latency; 2] {
    rig.runtime.block_on(async {
        let mut callers = Callers::new(question, arrivals);
        let mut pings = Callers::new(ping, arrivals);
        arrivals
            .each(|number, due| {
                callers.ask(due);
                if number % PING_AMONG == 0 {
                    pings.ask(due);
                }
            })
            .await;
        [callers.latency().await, pings.latency().await]
    })
}

impl Arrivals {
    async fn each(&self, mut arrive: impl FnMut(usize, Instant)) {
        let gap = Duration::from_secs_f64(1.0 / self.per_second);
        let mut due = Instant::now() + gap;
        for number in 0..self.count {
            // A timer is too coarse by far. Whatever else there is to do comes first at each turn, input included.
            while Instant::now() < due {
                tokio::task::yield_now().await;
            }
            arrive(number, due);
            due += gap;
        }
    }
}

/// They ask in turn. Whoever is still waiting for its last answer asks late, and that counts: the clock of a question starts
/// when it was due.
struct Callers {
    tasks: JoinSet<Vec<u64>>,
    due: Vec<mpsc::UnboundedSender<Instant>>,
    asked: usize,
}

impl Callers {
    fn new(question: &Question, arrivals: &Arrivals) -> Self {
        let mut tasks = JoinSet::new();
        let due = (1..=CALLERS).map(|caller| {
            let (sender, due) = mpsc::unbounded_channel();
            let seed = arrivals.seed * CALLERS + caller;
            let draws = uniform(KEYS, arrivals.count.div_ceil(CALLERS), seed as u64);
            tasks.spawn(answer_times(question.clone(), draws, due));
            sender
        });
        Self { due: due.collect(), tasks, asked: 0 }
    }

    fn ask(&mut self, due: Instant) {
        self.due[self.asked % CALLERS].send(due).expect("callers wait for more");
        self.asked += 1;
    }

    async fn latency(self) -> Latency {
        drop(self.due);
        let mut times: Vec<u64> = self.tasks.join_all().await.into_iter().flatten().collect();
        times.sort_unstable();
        let micros = |place: usize| Duration::from_nanos(times[place]).as_secs_f64() * 1e6;
        let percent = |percent: usize| micros(times.len() * percent / 100);
        Latency { p50: percent(50), p95: percent(95), p99: percent(99) }
    }
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
