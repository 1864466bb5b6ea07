//! Properties of the fast path that a client cannot observe: when it yields, how much it buffers, and when it hands over.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use slidegate::store::MemoryStore;
use slidegate_config::Limits;
use slidegate_engine::{Engine, Policies};
use tokio::io::{AsyncReadExt, DuplexStream, duplex};
use tokio::sync::watch;

use super::*;

const BODY: &str = r#"{"quotas": ["1000000/1m"], "key": "a"}"#;

fn request() -> String {
    format!("POST /v1/check HTTP/1.1\r\nhost: a\r\ncontent-length: {}\r\n\r\n{BODY}", BODY.len())
}

fn routes() -> Routes<MemoryStore> {
    let engine = Engine::new(MemoryStore::new(), Policies::default());
    Routes::new(Arc::new(engine), Limits::default(), axum::Router::new())
}

/// Returns the fast path of a connection, its client and the sender of stop phases. The transport holds `capacity` bytes in
/// each direction.
fn fast_path<'r>(
    routes: &'r Routes<MemoryStore>,
    activity: &'r Activity,
    capacity: usize,
) -> (
    impl Future<Output = io::Result<FastPathEnd<DuplexStream>>> + use<'r>,
    DuplexStream,
    watch::Sender<StopPhase>,
) {
    let (stop, receiver) = watch::channel(StopPhase::Running);
    let (client, server) = duplex(capacity);
    (FastPath::new(server, routes, activity, Stop::new(receiver)).run(), client, stop)
}

fn poll_once<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

/// Reads the available bytes and returns the number of responses in them.
fn read_responses(client: &mut DuplexStream) -> usize {
    let mut bytes = vec![0; 1 << 20];
    let Poll::Ready(count) = poll_once(pin!(client.read(&mut bytes))) else { return 0 };
    String::from_utf8_lossy(&bytes[..count.unwrap()]).matches("HTTP/1.1 200 OK").count()
}

#[tokio::test]
async fn the_connection_yields_after_a_few_requests() {
    let (routes, activity) = (routes(), Activity::new());
    let (run, mut client, _stop) = fast_path(&routes, &activity, 1 << 20);
    let mut run = pin!(run);
    client.write_all(request().repeat(10 * REQUESTS_PER_YIELD).as_bytes()).await.unwrap();
    let mut counts = Vec::new();
    while counts.iter().sum::<usize>() < 10 * REQUESTS_PER_YIELD {
        assert!(counts.len() < 10 * REQUESTS_PER_YIELD && poll_once(run.as_mut()).is_pending(), "{counts:?}");
        counts.push(read_responses(&mut client));
    }
    // One poll may process the rest of a read and, after the next read, as many requests again.
    assert!(counts.iter().all(|count| *count < 2 * REQUESTS_PER_YIELD), "{counts:?}");
}

#[tokio::test]
async fn a_request_may_arrive_in_two_parts() {
    let (routes, activity, request) = (routes(), Activity::new(), request());
    for split in 1..request.len() {
        let (run, mut client, _stop) = fast_path(&routes, &activity, 1 << 16);
        let mut run = pin!(run);
        let (first, second) = request.split_at(split);
        client.write_all(first.as_bytes()).await.unwrap();
        assert!(poll_once(run.as_mut()).is_pending());
        assert_eq!(read_responses(&mut client), 0, "{split}");
        client.write_all(second.as_bytes()).await.unwrap();
        assert!(poll_once(run.as_mut()).is_pending());
        assert_eq!(read_responses(&mut client), 1, "{split}");
        // Refills the coop budget of this task.
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn unread_responses_suspend_reading() {
    let (routes, activity) = (routes(), Activity::new());
    let (run, mut client, _stop) = fast_path(&routes, &activity, 1 << 10);
    // The coop budget is disabled, so only the buffer limits suspend reading.
    let mut run = pin!(tokio::task::unconstrained(run));
    let requests = request().repeat(10_000);
    let mut sent = 0;
    loop {
        let _ = poll_once(run.as_mut());
        match poll_once(pin!(tokio::task::unconstrained(client.write(&requests.as_bytes()[sent..])))) {
            Poll::Ready(count) => sent += count.unwrap(),
            Poll::Pending => break,
        }
        assert!(sent < 1 << 18, "reading is not suspended");
    }
    // Both buffers and both directions of the transport are full. Responses are longer than requests.
    assert!(sent <= BUFFER_LIMITS.input + BUFFER_LIMITS.output + (2 << 10), "{sent} bytes");
}

#[tokio::test(start_paused = true)]
async fn a_partial_request_is_handed_over_to_hyper_after_the_timeout() {
    let (routes, activity) = (routes(), Activity::new());
    let (run, mut client, _stop) = fast_path(&routes, &activity, 1 << 16);
    let partial = &request()[..40];
    client.write_all((request() + partial).as_bytes()).await.unwrap();
    let mut run = pin!(run);
    assert!(poll_once(run.as_mut()).is_pending());
    assert_eq!(read_responses(&mut client), 1);
    tokio::time::advance(PARTIAL_REQUEST_TIMEOUT.mul_f64(0.9)).await;
    assert!(poll_once(run.as_mut()).is_pending(), "before the timeout");
    tokio::time::advance(PARTIAL_REQUEST_TIMEOUT.mul_f64(0.2)).await;
    match poll_once(run.as_mut()) {
        Poll::Ready(Ok(FastPathEnd::HandedOver { unread, may_be_http2, .. })) => {
            assert_eq!((unread, may_be_http2), (partial.as_bytes().to_vec(), false));
        }
        Poll::Ready(_) => panic!("closed or failed"),
        Poll::Pending => panic!("still pending"),
    }
}

#[tokio::test(start_paused = true)]
async fn an_idle_connection_stays_open_until_the_closing_phase() {
    let (routes, activity) = (routes(), Activity::new());
    let (run, _client, stop) = fast_path(&routes, &activity, 1 << 10);
    let mut run = pin!(run);
    assert!(poll_once(run.as_mut()).is_pending());
    tokio::time::advance(100 * PARTIAL_REQUEST_TIMEOUT).await;
    assert!(poll_once(run.as_mut()).is_pending());
    stop.send_replace(StopPhase::Draining);
    assert!(poll_once(run.as_mut()).is_pending());
    stop.send_replace(StopPhase::Closing);
    assert!(matches!(poll_once(run.as_mut()), Poll::Ready(Ok(FastPathEnd::Closed))));
}
