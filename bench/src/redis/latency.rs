//! Response time at half of the maximum rate, measured from the moment at which a request was due.
#![expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]

use std::time::{Duration, Instant};

use redis::AsyncConnectionConfig;
use redis::aio::MultiplexedConnection;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::callers::{Application, CALLERS, KEYS};
use super::rig::Rig;
use crate::traffic::uniform;

/// Percentiles in microseconds.
pub(crate) struct Latency {
    pub(crate) p50: f64,
    pub(crate) p95: f64,
    pub(crate) p99: f64,
}

/// Rare enough to leave the server's capacity to the other requests.
const PING_AMONG: usize = 32;

/// Rate and number of arrivals.
pub(crate) struct Arrivals {
    pub(crate) per_second: f64,
    pub(crate) count: usize,
    /// Different seeds draw different keys.
    pub(crate) seed: usize,
}

/// Request that a caller sends at each arrival.
#[derive(Clone)]
pub(crate) enum Request {
    Check(Application),
    Ping(MultiplexedConnection),
}

impl Request {
    /// Builds a `PING` on the same kind of connection of the same client library.
    pub(crate) fn ping(rig: &Rig) -> Self {
        let client = redis::Client::open(rig.server.url()).expect("a valid address");
        // The same settings as Slidegate's: no timeout of the client library.
        let config = AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
        let connection = rig.runtime.block_on(client.get_multiplexed_async_connection_with_config(&config));
        Self::Ping(connection.expect("a server"))
    }

    async fn send(&mut self, number: u32) {
        match self {
            Self::Check(application) => application.check(number).await,
            Self::Ping(connection) => {
                redis::cmd("PING").exec_async(connection).await.expect("a response");
            }
        }
    }
}

/// Sends requests at fixed times.
pub(crate) fn open_loop(rig: &Rig, request: &Request, arrivals: &Arrivals) -> Latency {
    rig.runtime.block_on(async {
        let mut callers = Callers::new(request, arrivals);
        arrivals.each(|_, due| callers.send(due)).await;
        callers.latency().await
    })
}

/// Sends requests at fixed times, and a `PING` beside every [`PING_AMONG`]th on a separate connection.
pub(crate) fn open_loop_beside(
    rig: &Rig,
    [request, ping]: &[Request; 2],
    arrivals: &Arrivals,
) -> [Latency; 2] {
    rig.runtime.block_on(async {
        let mut callers = Callers::new(request, arrivals);
        let mut pings = Callers::new(ping, arrivals);
        arrivals
            .each(|number, due| {
                callers.send(due);
                if number % PING_AMONG == 0 {
                    pings.send(due);
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
            // A timer is too coarse. Yielding runs all other work first, input included.
            while Instant::now() < due {
                tokio::task::yield_now().await;
            }
            arrive(number, due);
            due += gap;
        }
    }
}

/// Callers that send in turn. A caller that still waits for its last response sends late. The delay counts, because the
/// time of a request starts when it was due.
struct Callers {
    tasks: JoinSet<Vec<u64>>,
    due: Vec<mpsc::UnboundedSender<Instant>>,
    sent: usize,
}

impl Callers {
    fn new(request: &Request, arrivals: &Arrivals) -> Self {
        let mut tasks = JoinSet::new();
        let due = (1..=CALLERS).map(|caller| {
            let (sender, due) = mpsc::unbounded_channel();
            let seed = arrivals.seed * CALLERS + caller;
            let draws = uniform(KEYS, arrivals.count.div_ceil(CALLERS), seed as u64);
            tasks.spawn(response_times(request.clone(), draws, due));
            sender
        });
        Self { due: due.collect(), tasks, sent: 0 }
    }

    fn send(&mut self, due: Instant) {
        self.due[self.sent % CALLERS].send(due).expect("callers wait for more");
        self.sent += 1;
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

async fn response_times(
    mut request: Request,
    draws: Vec<u32>,
    mut due: mpsc::UnboundedReceiver<Instant>,
) -> Vec<u64> {
    let mut times = Vec::with_capacity(draws.len());
    for number in draws {
        let Some(due) = due.recv().await else { break };
        request.send(number).await;
        times.push(due.elapsed().as_nanos() as u64);
    }
    times
}
