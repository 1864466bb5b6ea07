//! Clients that wait.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use slidegate::tower::{WaitError, WaitLayer};
use slidegate::{Clock, ManualClock, Policy};
use tower::{Layer, ServiceExt};

use crate::rig::limiter;

/// When requests were sent, and what to answer to the next ones.
#[derive(Clone)]
struct Server {
    clock: ManualClock,
    sent_ms: Arc<Mutex<Vec<u64>>>,
    answers: Arc<Mutex<Vec<Response<Full<Bytes>>>>>,
}

impl Server {
    #[allow(clippy::unused_async, reason = "a service answers with a future")]
    async fn serve(self) -> Result<Response<Full<Bytes>>, Infallible> {
        self.sent_ms.lock().unwrap().push(self.clock.now_ms() - 1_800_000_000_000);
        Ok(self.answers.lock().unwrap().pop().unwrap_or_default())
    }
}

/// Sends `count` at once, the clock going on whenever all of them sleep.
async fn send(quota: &str, patience_s: u64, server: &Server, count: usize) -> Vec<Result<u16, String>> {
    let (limiter, clock) = limiter();
    clock.set(server.clock.now_ms());
    let policy = Policy::parse("theirs", [quota]).unwrap();
    let layer = WaitLayer::new(limiter, policy, Duration::from_secs(patience_s));
    let inner = server.clone();
    let client = layer.layer(tower::service_fn(move |_: Request<()>| inner.clone().serve()));
    let mut tasks = Vec::new();
    for _ in 0..count {
        let client = client.clone();
        let request = Request::get("http://example.test/").body(()).unwrap();
        tasks.push(tokio::spawn(async move { client.oneshot(request).await }));
        tokio::task::yield_now().await;
    }
    while !tasks.iter().all(tokio::task::JoinHandle::is_finished) {
        clock.advance(100);
        server.clock.advance(100);
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
    }
    let mut outcomes = Vec::new();
    for task in tasks {
        let outcome = task.await.unwrap();
        outcomes.push(match outcome {
            Ok(response) => Ok(response.status().as_u16()),
            Err(error @ (WaitError::TooLong(_) | WaitError::Paused(_))) => Err(error.to_string()),
            Err(error) => panic!("{error}"),
        });
    }
    outcomes
}

fn server(answers: Vec<Response<Full<Bytes>>>) -> Server {
    let clock = ManualClock::at(1_800_000_000_000);
    Server { clock, sent_ms: Arc::default(), answers: Arc::new(Mutex::new(answers)) }
}

#[tokio::test]
async fn requests_are_delayed_to_stay_under_the_limit() {
    let server = server(Vec::new());
    let outcomes = send("2/1s strict-window", 10, &server, 5).await;
    assert!(outcomes.iter().all(|outcome| *outcome == Ok(200)), "{outcomes:?}");
    assert_eq!(*server.sent_ms.lock().unwrap(), [0, 0, 1000, 1000, 2000]);
}

#[tokio::test]
async fn who_has_no_patience_is_told_at_once() {
    let server = server(Vec::new());
    let outcomes = send("1/1m strict-window", 10, &server, 2).await;
    assert_eq!(outcomes, [Ok(200), Err("not sent: the limit allows it in 60000 ms".to_owned())]);
    assert_eq!(server.sent_ms.lock().unwrap().len(), 1);
}

#[tokio::test]
async fn a_server_that_says_no_is_left_alone_as_long_as_it_asks() {
    let no = || Response::builder().status(429).header("retry-after", "3").body(Full::default()).unwrap();
    let server = server(vec![no()]);
    let outcomes = send("100/1s", 10, &server, 3).await;
    assert_eq!(outcomes, [Ok(429), Ok(200), Ok(200)]);
    assert_eq!(*server.sent_ms.lock().unwrap(), [0, 3000, 3000]);

    let server = self::server(vec![no()]);
    let outcomes = send("100/1s", 2, &server, 2).await;
    assert_eq!(outcomes, [Ok(429), Err("not sent: the server wants to be left alone for 3s".to_owned())]);
}

/// The first answer takes half a second to come, and others are waiting for their turn when it does.
#[tokio::test]
async fn a_server_that_says_no_stops_those_who_wait_already() {
    let (limiter, clock) = limiter();
    let sent_ms = Arc::new(Mutex::new(Vec::new()));
    let inner = {
        let (clock, sent_ms) = (clock.clone(), Arc::clone(&sent_ms));
        tower::service_fn(move |_: Request<()>| {
            let (clock, sent_ms) = (clock.clone(), Arc::clone(&sent_ms));
            async move {
                let is_first = {
                    let mut sent_ms = sent_ms.lock().unwrap();
                    sent_ms.push(clock.now_ms() - 1_800_000_000_000);
                    sent_ms.len() == 1
                };
                if !is_first {
                    return Ok(Response::default());
                }
                clock.sleep(500).await;
                let no = Response::builder().status(429).header("retry-after", "3");
                Ok::<_, Infallible>(no.body(Full::<Bytes>::default()).unwrap())
            }
        })
    };
    let policy = Policy::parse("theirs", ["1/3s strict-window"]).unwrap();
    let client = WaitLayer::new(limiter, policy, Duration::from_secs(10)).layer(inner);
    let request = || Request::get("http://example.test/").body(()).unwrap();
    let tasks: Vec<_> = (0..3).map(|_| tokio::spawn(client.clone().oneshot(request()))).collect();
    while !tasks.iter().all(tokio::task::JoinHandle::is_finished) {
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        clock.advance(100);
    }
    assert_eq!(*sent_ms.lock().unwrap(), [0, 3500, 6500]);
}

/// Those of a tonic client name no host; its channel knows it.
#[tokio::test]
async fn who_names_no_host_waits_all_the_same() {
    let (limiter, _) = limiter();
    let policy = Policy::parse("theirs", ["1/1m strict-window"]).unwrap();
    let layer = WaitLayer::new(limiter, policy, Duration::ZERO);
    let client = layer.layer(tower::service_fn(crate::rig::serve::<()>));
    let send = async |uri: &str| client.clone().oneshot(Request::post(uri).body(()).unwrap()).await;
    assert!(send("/package.Service/Method").await.is_ok());
    assert!(matches!(send("/package.Service/Other").await, Err(WaitError::TooLong(_))));
    assert!(send("http://example.test/").await.is_ok());
    assert!(matches!(send("http://EXAMPLE.test:80/").await, Err(WaitError::TooLong(_))));
}
