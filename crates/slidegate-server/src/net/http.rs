//! HTTP by hyper, and how its connections end when the service stops.

use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;

use axum::body::Bytes;
use axum::http::header::{CONNECTION, HeaderValue};
use axum::http::{Request, Response, Version};
use hyper::body::{Body, Incoming};
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;

use super::activity::Activity;
use super::limits;
use super::paced_body::PacedBody;
use super::request_stream::{RequestStream, Requests};
use super::stop::{Phase, Stop, phase};
use slidegate_config::Limits;

/// How a connection is talked on.
pub(super) struct Talk<'a> {
    pub(super) limits: &'a Limits,
    pub(super) activity: Arc<Activity>,
    pub(super) may_be_http2: bool,
    /// Bytes that were received before hyper took over.
    pub(super) unread: Vec<u8>,
    pub(super) stop: Stop,
}

/// Requests and answers on one connection, HTTP/1.1 or 2 as it begins.
pub(super) async fn converse<I, A, F, B>(
    stream: I,
    Talk { limits, activity, may_be_http2, unread, mut stop }: Talk<'_>,
    answer: A,
) -> Result<(), String>
where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    A: Fn(Request<Incoming>) -> F + Send + 'static,
    F: Future<Output = Response<B>> + Send + 'static,
    B: Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let requests = Arc::new(Requests::default());
    let stream = RequestStream::new(stream, unread, Arc::clone(&requests));
    let service = service(answer, Arc::clone(&activity), Arc::clone(&requests), stop.told());
    let connection =
        builder(limits, may_be_http2).serve_connection(TokioIo::new(stream), service).into_owned();
    let mut connection = pin!(connection);
    for phase in [Phase::Draining, Phase::Closing] {
        tokio::select! {
            biased;
            ended = connection.as_mut() => return ended.map_err(|error| error.to_string()),
            () = poll_fn(|context| stop.poll(phase, context)) => {}
        }
        // HTTP/2 announces the end at any time, and hyper does so twice: GOAWAY for all streams that there can be, and once
        // the client has answered a PING, for those that there are. HTTP/1 can announce it by a response alone, so hyper,
        // which would close an idle connection, is not told before the grace period is over.
        let is_idle = phase == Phase::Closing && !requests.has_begun();
        if activity.is_http2() || is_idle {
            activity.linger_on_close();
            connection.as_mut().graceful_shutdown();
        }
    }
    connection.await.map_err(|error| error.to_string())
}

fn builder(limits: &Limits, may_be_http2: bool) -> auto::Builder<TokioExecutor> {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    // `IoTimeout` looks after the time for the head: hyper would set a timer for each.
    builder.http1().header_read_timeout(None).max_buf_size(limits::HEAD_BYTES);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(Some(limits.head_timeout))
        .keep_alive_timeout(limits.head_timeout)
        .max_header_list_size(limits::HEAD_BYTES as u32)
        .max_send_buf_size(limits::PIECE_BYTES)
        .max_concurrent_streams(limits::STREAMS);
    if may_be_http2 { builder } else { builder.http1_only() }
}

/// Answers the requests of one connection. During a stop, a response over HTTP/1 announces the end of the connection.
fn service<A, F, B>(
    answer: A,
    activity: Arc<Activity>,
    requests: Arc<Requests>,
    stop: watch::Receiver<Phase>,
) -> impl Service<Request<Incoming>, Response = Response<PacedBody<B>>, Error = Infallible, Future: Send + 'static>
+ Send
+ 'static
where
    A: Fn(Request<Incoming>) -> F + Send + 'static,
    F: Future<Output = Response<B>> + Send + 'static,
    B: Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    service_fn(move |request: Request<Incoming>| {
        let is_one_of_many = request.version() == Version::HTTP_2;
        let (activity, requests, stop) = (Arc::clone(&activity), Arc::clone(&requests), stop.clone());
        if !is_one_of_many {
            requests.begin(request.body().size_hint().exact());
        }
        let answered = answer(request);
        async move {
            let work = if is_one_of_many { Some(activity.streams().begin().await) } else { None };
            activity.begin();
            let mut response = answered.await;
            activity.end();
            let is_last = match phase(&stop) {
                Phase::Open => false,
                Phase::Draining => !requests.has_next(),
                Phase::Closing => true,
            };
            if !is_one_of_many && is_last {
                activity.linger_on_close();
                response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            }
            if !is_one_of_many {
                requests.end();
            }
            Ok::<_, Infallible>(response.map(|body| match work {
                None => PacedBody::whole(body, &activity),
                Some(work) => PacedBody::in_pieces(body, work.streams()),
            }))
        }
    })
}
