//! Outgoing clients with a wait layer.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderName, Request, Response};
use http_body_util::Full;
use slidegate::tower::{Key, WaitError, WaitLayer};
use slidegate::{Clock, Limiter, ManualClock, Policy};
use tower::{Layer, Service, ServiceExt};

use crate::readiness::ReadyOnSecondPoll;
use crate::services::limiter;

/// A server that records when requests arrive and returns prepared responses.
#[derive(Clone)]
struct Server {
    clock: ManualClock,
    sent_ms: Arc<Mutex<Vec<u64>>>,
    responses: Arc<Mutex<Vec<Response<Full<Bytes>>>>>,
}

impl Server {
    #[allow(clippy::unused_async, reason = "a service returns a future")]
    async fn serve(self) -> Result<Response<Full<Bytes>>, Infallible> {
        self.sent_ms.lock().unwrap().push(self.clock.now_ms() - 1_800_000_000_000);
        Ok(self.responses.lock().unwrap().pop().unwrap_or_default())
    }
}

/// Sends `count` requests at once and advances the clock while all of them sleep.
async fn send(quota: &str, max_wait_s: u64, server: &Server, count: usize) -> Vec<Result<u16, String>> {
    let (limiter, clock) = limiter();
    clock.set(server.clock.now_ms());
    let policy = Policy::parse("theirs", [quota]).unwrap();
    let layer = WaitLayer::over(limiter, policy, Duration::from_secs(max_wait_s));
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

fn server(responses: Vec<Response<Full<Bytes>>>) -> Server {
    let clock = ManualClock::at(1_800_000_000_000);
    Server { clock, sent_ms: Arc::default(), responses: Arc::new(Mutex::new(responses)) }
}

#[tokio::test]
async fn requests_are_delayed_to_stay_under_the_limit() {
    let server = server(Vec::new());
    let outcomes = send("2/1s strict-window", 10, &server, 5).await;
    assert!(outcomes.iter().all(|outcome| *outcome == Ok(200)), "{outcomes:?}");
    assert_eq!(*server.sent_ms.lock().unwrap(), [0, 0, 1000, 1000, 2000]);
}

#[tokio::test]
async fn a_wait_beyond_the_maximum_fails_at_once() {
    let server = server(Vec::new());
    let outcomes = send("1/1m strict-window", 10, &server, 2).await;
    assert_eq!(outcomes, [Ok(200), Err("not sent: the limit allows it in 60000 ms".to_owned())]);
    assert_eq!(server.sent_ms.lock().unwrap().len(), 1);
}

#[tokio::test]
async fn a_denying_server_gets_no_requests_until_its_retry_time() {
    let denial = || Response::builder().status(429).header("retry-after", "3").body(Full::default()).unwrap();
    let server = server(vec![denial()]);
    let outcomes = send("100/1s", 10, &server, 3).await;
    assert_eq!(outcomes, [Ok(429), Ok(200), Ok(200)]);
    assert_eq!(*server.sent_ms.lock().unwrap(), [0, 3000, 3000]);

    let server = self::server(vec![denial()]);
    let outcomes = send("100/1s", 2, &server, 2).await;
    assert_eq!(outcomes, [Ok(429), Err("not sent: the server requires a pause of 3s".to_owned())]);
}

#[tokio::test]
async fn a_client_waits_within_the_tier_of_its_request() {
    async fn send<S>(client: &S, tier: &str) -> Result<(), String>
    where
        S: Service<Request<()>, Error: ToString> + Clone,
    {
        let request = Request::get("http://example.test/").header("x-tier", tier).body(()).unwrap();
        client.clone().oneshot(request).await.map(drop).map_err(|error| error.to_string())
    }

    let their_api = Limiter::builder("theirs").quotas(["2/1m"]).tier("search", ["1/1m"]).in_memory().unwrap();
    let client = WaitLayer::new(their_api, Duration::ZERO)
        .tier(|request| request.headers.get("x-tier")?.to_str().ok())
        .layer(tower::service_fn(crate::services::serve::<()>));
    assert_eq!(send(&client, "search").await, Ok(()));
    let denied = send(&client, "search").await.unwrap_err();
    assert!(denied.starts_with("not sent: the limit allows it in "), "{denied}");
    let other = client.clone().oneshot(Request::get("http://example.test/").body(()).unwrap()).await;
    assert!(other.is_ok(), "the quotas without a tier have a unit left");
    let unknown = send(&client, "gold").await.unwrap_err();
    assert_eq!(unknown, r#"not sent: the policy "theirs" has no tier "gold"; known: search"#);
}

#[tokio::test]
async fn a_request_without_a_key_is_sent_whatever_its_tier() {
    let their_api = Limiter::builder("theirs").quotas(["1/1m"]).tier("search", ["1/1m"]).in_memory().unwrap();
    let client = WaitLayer::new(their_api, Duration::ZERO)
        .key(Key::header(HeaderName::from_static("x-account")))
        .tier(|_| Some("gold"))
        .layer(tower::service_fn(crate::services::serve::<()>));
    for _ in 0..2 {
        client.clone().oneshot(Request::get("http://example.test/").body(()).unwrap()).await.unwrap();
    }
    let with_key = Request::get("http://example.test/").header("x-account", "1").body(()).unwrap();
    assert!(matches!(client.oneshot(with_key).await, Err(WaitError::Undecided(_))));
}

/// The first response takes 500 ms, and other requests wait for the limit when it arrives.
#[tokio::test]
async fn a_denial_by_the_server_delays_waiting_requests() {
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
                let denial = Response::builder().status(429).header("retry-after", "3");
                Ok::<_, Infallible>(denial.body(Full::<Bytes>::default()).unwrap())
            }
        })
    };
    let policy = Policy::parse("theirs", ["1/3s strict-window"]).unwrap();
    let client = WaitLayer::over(limiter, policy, Duration::from_secs(10)).layer(inner);
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

/// Requests of a tonic client name no host, because the channel knows it.
#[tokio::test]
async fn requests_without_a_host_are_limited_too() {
    let (limiter, _) = limiter();
    let policy = Policy::parse("theirs", ["1/1m strict-window"]).unwrap();
    let layer = WaitLayer::over(limiter, policy, Duration::ZERO);
    let client = layer.layer(tower::service_fn(crate::services::serve::<()>));
    let send = async |uri: &str| client.clone().oneshot(Request::post(uri).body(()).unwrap()).await;
    assert!(send("/package.Service/Method").await.is_ok());
    assert!(matches!(send("/package.Service/Other").await, Err(WaitError::TooLong(_))));
    assert!(send("http://example.test/").await.is_ok());
    assert!(matches!(send("http://EXAMPLE.test:80/").await, Err(WaitError::TooLong(_))));
}

#[tokio::test]
async fn a_waiting_request_holds_no_permit() {
    let (limiter, clock) = limiter();
    let inner = ReadyOnSecondPoll::new();
    let (permits, served) = (Arc::clone(&inner.permits), Arc::clone(&inner.served));
    let policy = Policy::parse("theirs", ["1/1m strict-window"]).unwrap();
    let mut client = WaitLayer::over(limiter, policy, Duration::from_secs(100)).layer(inner);
    let request = || Request::get("http://example.test/").body(()).unwrap();
    client.ready().await.unwrap().call(request()).await.unwrap();
    let second = tokio::spawn(client.ready().await.unwrap().call(request()));
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
    assert!(!second.is_finished());
    assert_eq!(permits.load(Ordering::Relaxed), 0, "the request waits");
    clock.advance(60_000);
    second.await.unwrap().unwrap();
    assert_eq!((served.load(Ordering::Relaxed), permits.load(Ordering::Relaxed)), (2, 0));
}

/// A server of one request at a time. The first takes 500 ms and is denied.
#[derive(Clone)]
struct SerialServer {
    clock: ManualClock,
    is_busy: Arc<AtomicBool>,
    sent_ms: Arc<Mutex<Vec<u64>>>,
}

impl Service<Request<()>> for SerialServer {
    type Response = Response<Full<Bytes>>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        if self.is_busy.load(Ordering::Relaxed) {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<()>) -> Self::Future {
        assert!(!self.is_busy.swap(true, Ordering::Relaxed));
        let this = self.clone();
        let sent = {
            let mut sent_ms = self.sent_ms.lock().unwrap();
            sent_ms.push(self.clock.now_ms() - 1_800_000_000_000);
            sent_ms.len()
        };
        Box::pin(async move {
            let response = if sent == 1 {
                this.clock.sleep(500).await;
                Response::builder().status(429).header("retry-after", "3")
            } else {
                Response::builder()
            };
            this.is_busy.store(false, Ordering::Relaxed);
            Ok(response.body(Full::default()).unwrap())
        })
    }
}

#[tokio::test]
async fn a_denial_by_the_server_delays_requests_that_wait_for_readiness() {
    let (limiter, clock) = limiter();
    let sent_ms = Arc::new(Mutex::new(Vec::new()));
    let inner = SerialServer { clock: clock.clone(), is_busy: Arc::default(), sent_ms: Arc::clone(&sent_ms) };
    let policy = Policy::parse("theirs", ["2/1m strict-window"]).unwrap();
    let client = WaitLayer::over(limiter, policy, Duration::from_secs(10)).layer(inner);
    let request = || Request::get("http://example.test/").body(()).unwrap();
    let mut first = client.clone();
    let mut second = client.clone();
    let first = tokio::spawn(first.ready().await.unwrap().call(request()));
    let second = tokio::spawn(second.ready().await.unwrap().call(request()));
    while !(first.is_finished() && second.is_finished()) {
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        clock.advance(100);
    }
    assert_eq!(first.await.unwrap().unwrap().status(), 429);
    assert_eq!(second.await.unwrap().unwrap().status(), 200, "its units were refunded");
    assert_eq!(*sent_ms.lock().unwrap(), [0, 3500]);
}
