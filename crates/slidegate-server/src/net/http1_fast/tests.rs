//! What a client cannot see from outside: when the lane lets others go first, how much it holds, and when it gives up.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use slidegate::store::MemoryStore;
use tokio::io::{AsyncReadExt, DuplexStream, duplex};
use tokio::sync::watch;

use super::*;
use crate::app::App;
use crate::net::Limits;
use crate::policies::Policies;

const BODY: &str = r#"{"quotas": ["1000000/1m"], "key": "a"}"#;

fn request() -> String {
    format!("POST /v1/check HTTP/1.1\r\nhost: a\r\ncontent-length: {}\r\n\r\n{BODY}", BODY.len())
}

fn routes() -> Routes<MemoryStore> {
    let app = App::new(MemoryStore::new(), Policies::default());
    Routes::new(Arc::new(app), Limits::default(), None)
}

/// A lane and its client, with so many bytes between them in either direction.
fn lane<'r>(
    routes: &'r Routes<MemoryStore>,
    activity: &'r Activity,
    between: usize,
) -> (impl Future<Output = io::Result<Left<DuplexStream>>> + use<'r>, DuplexStream, watch::Sender<Phase>) {
    let (stop, stopped) = watch::channel(Phase::Open);
    let (client, server) = duplex(between);
    (Lane::new(server, routes, activity, Stop::new(stopped)).run(), client, stop)
}

fn poll_once<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

/// How many answers there are to read.
fn answers(client: &mut DuplexStream) -> usize {
    let mut bytes = vec![0; 1 << 20];
    let Poll::Ready(count) = poll_once(pin!(client.read(&mut bytes))) else { return 0 };
    String::from_utf8_lossy(&bytes[..count.unwrap()]).matches("HTTP/1.1 200 OK").count()
}

#[tokio::test]
async fn it_is_another_connections_turn_after_a_few_requests() {
    let (routes, activity) = (routes(), Activity::new());
    let (run, mut client, _stop) = lane(&routes, &activity, 1 << 20);
    let mut run = pin!(run);
    client.write_all(request().repeat(10 * TURN).as_bytes()).await.unwrap();
    let mut turns = Vec::new();
    while turns.iter().sum::<usize>() < 10 * TURN {
        assert!(turns.len() < 10 * TURN && poll_once(run.as_mut()).is_pending(), "{turns:?}");
        turns.push(answers(&mut client));
    }
    // A few may be left of what was read at first.
    assert!(turns.iter().all(|turn| *turn < 2 * TURN), "{turns:?}");
}

#[tokio::test]
async fn it_does_not_matter_where_a_request_is_cut() {
    let (routes, activity, request) = (routes(), Activity::new(), request());
    for cut in 1..request.len() {
        let (run, mut client, _stop) = lane(&routes, &activity, 1 << 16);
        let mut run = pin!(run);
        let (first, second) = request.split_at(cut);
        client.write_all(first.as_bytes()).await.unwrap();
        assert!(poll_once(run.as_mut()).is_pending());
        assert_eq!(answers(&mut client), 0, "{cut}");
        client.write_all(second.as_bytes()).await.unwrap();
        assert!(poll_once(run.as_mut()).is_pending());
        assert_eq!(answers(&mut client), 1, "{cut}");
        // Whoever does as much as this in one go is held up by the runtime.
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn who_does_not_read_is_not_read_from() {
    let (routes, activity) = (routes(), Activity::new());
    let (run, mut client, _stop) = lane(&routes, &activity, 1 << 10);
    // Nobody but the bounds is to hold it up.
    let mut run = pin!(tokio::task::unconstrained(run));
    let asked = request().repeat(10_000);
    let mut taken = 0;
    loop {
        let _ = poll_once(run.as_mut());
        match poll_once(pin!(tokio::task::unconstrained(client.write(&asked.as_bytes()[taken..])))) {
            Poll::Ready(count) => taken += count.unwrap(),
            Poll::Pending => break,
        }
        assert!(taken < 1 << 18, "it goes on reading");
    }
    // What may wait in either direction and between the two; answers are longer than requests.
    assert!(taken <= BUFFERS.input + BUFFERS.output + (2 << 10), "{taken} bytes");
}

#[tokio::test(start_paused = true)]
async fn hyper_is_handed_what_does_not_come_to_an_end() {
    let (routes, activity) = (routes(), Activity::new());
    let (run, mut client, _stop) = lane(&routes, &activity, 1 << 16);
    let half = &request()[..40];
    client.write_all((request() + half).as_bytes()).await.unwrap();
    let mut run = pin!(run);
    assert!(poll_once(run.as_mut()).is_pending());
    assert_eq!(answers(&mut client), 1);
    tokio::time::advance(PATIENCE.mul_f64(0.9)).await;
    assert!(poll_once(run.as_mut()).is_pending(), "there is time left");
    tokio::time::advance(PATIENCE.mul_f64(0.2)).await;
    match poll_once(run.as_mut()) {
        Poll::Ready(Ok(Left::Other { unread, may_be_http2, .. })) => {
            assert_eq!((unread, may_be_http2), (half.as_bytes().to_vec(), false));
        }
        Poll::Ready(_) => panic!("it ended otherwise"),
        Poll::Pending => panic!("it still waits"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_connection_on_which_nothing_has_begun_may_wait() {
    let (routes, activity) = (routes(), Activity::new());
    let (run, _client, stop) = lane(&routes, &activity, 1 << 10);
    let mut run = pin!(run);
    assert!(poll_once(run.as_mut()).is_pending());
    tokio::time::advance(100 * PATIENCE).await;
    assert!(poll_once(run.as_mut()).is_pending());
    stop.send_replace(Phase::Draining);
    assert!(poll_once(run.as_mut()).is_pending());
    stop.send_replace(Phase::Closing);
    assert!(matches!(poll_once(run.as_mut()), Poll::Ready(Ok(Left::Ended))));
}
