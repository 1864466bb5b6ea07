//! HTTP/1.1 and HTTP/2 connections of hyper, with their drain.

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
use slidegate_config::Limits;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;

use super::io_timeout::Activity;
use super::paced_body::{CHUNK_BYTES, PacedBody};
use super::request_stream::{RequestSequence, RequestStream};
use super::stop::{Stop, StopPhase, phase};

/// Maximum size of a request head.
const MAX_HEAD_BYTES: usize = 32 << 10;
/// Maximum number of concurrent streams of an HTTP/2 connection.
const MAX_STREAMS: u32 = 64;

/// State of a connection that hyper serves.
pub(crate) struct ConnectionState<'a> {
    pub(crate) limits: &'a Limits,
    pub(crate) activity: Arc<Activity>,
    pub(crate) may_be_http2: bool,
    /// Bytes that were received before hyper took over.
    pub(crate) unread: Vec<u8>,
    pub(crate) stop: Stop,
}

/// Serves a connection until it ends, with HTTP/1.1 or HTTP/2 according to its first bytes.
pub(crate) async fn serve_connection<I, H, F, B>(
    stream: I,
    ConnectionState { limits, activity, may_be_http2, unread, mut stop }: ConnectionState<'_>,
    handler: H,
) -> Result<(), String>
where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    H: Fn(Request<Incoming>) -> F + Send + 'static,
    F: Future<Output = Response<B>> + Send + 'static,
    B: Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let requests = Arc::new(RequestSequence::default());
    let stream = RequestStream::new(stream, unread, Arc::clone(&requests));
    let service = service(handler, Arc::clone(&activity), Arc::clone(&requests), stop.receiver());
    let connection =
        builder(limits, may_be_http2).serve_connection(TokioIo::new(stream), service).into_owned();
    let mut connection = pin!(connection);
    for phase in [StopPhase::Draining, StopPhase::Closing] {
        tokio::select! {
            biased;
            ended = connection.as_mut() => return ended.map_err(|error| error.to_string()),
            () = poll_fn(|context| stop.poll(phase, context)) => {}
        }
        // HTTP/2 can announce the end at any time. hyper sends two GOAWAY frames: the first permits all streams, and the
        // second, after a PING, only those that exist. HTTP/1 can announce the end in a response only. hyper would close
        // an idle HTTP/1 connection at once, so its shutdown waits for the end of the grace period.
        let is_idle = phase == StopPhase::Closing && !requests.has_begun();
        if activity.is_http2() || is_idle {
            activity.request_lingering_close();
            connection.as_mut().graceful_shutdown();
        }
    }
    connection.await.map_err(|error| error.to_string())
}

fn builder(limits: &Limits, may_be_http2: bool) -> auto::Builder<TokioExecutor> {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    // `IoTimeout` limits the time for heads. hyper would set a timer for each head.
    builder.http1().header_read_timeout(None).max_buf_size(MAX_HEAD_BYTES);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(Some(limits.head_timeout))
        .keep_alive_timeout(limits.head_timeout)
        .max_header_list_size(MAX_HEAD_BYTES as u32)
        .max_send_buf_size(CHUNK_BYTES)
        .max_concurrent_streams(MAX_STREAMS);
    if may_be_http2 { builder } else { builder.http1_only() }
}

/// Returns the service of one connection. During a stop, a response over HTTP/1 announces the end of the connection.
fn service<H, F, B>(
    handler: H,
    activity: Arc<Activity>,
    requests: Arc<RequestSequence>,
    stop: watch::Receiver<StopPhase>,
) -> impl Service<Request<Incoming>, Response = Response<PacedBody<B>>, Error = Infallible, Future: Send + 'static>
+ Send
+ 'static
where
    H: Fn(Request<Incoming>) -> F + Send + 'static,
    F: Future<Output = Response<B>> + Send + 'static,
    B: Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    service_fn(move |request: Request<Incoming>| {
        let is_http2 = request.version() == Version::HTTP_2;
        let (activity, requests, stop) = (Arc::clone(&activity), Arc::clone(&requests), stop.clone());
        if !is_http2 {
            requests.begin(request.body().size_hint().exact());
        }
        let response = handler(request);
        async move {
            let in_progress = if is_http2 { Some(activity.streams().begin_request().await) } else { None };
            activity.begin_request();
            let mut response = response.await;
            activity.end_request();
            let is_last = match phase(&stop) {
                StopPhase::Running => false,
                StopPhase::Draining => !requests.has_next(),
                StopPhase::Closing => true,
            };
            if !is_http2 && is_last {
                activity.request_lingering_close();
                response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            }
            if !is_http2 {
                requests.end();
            }
            Ok::<_, Infallible>(response.map(|body| match in_progress {
                None => PacedBody::unchanged(body, &activity),
                Some(request) => PacedBody::chunked(body, request.streams()),
            }))
        }
    })
}
