//! Response bodies that track whether the client reads them.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use axum::body::Bytes;
use hyper::body::{Body, Frame, SizeHint};

use super::io_timeout::Activity;
use super::streams::{RequestInProgress, Streams, UnreadResponse};

/// Size of the chunks in which an HTTP/2 response is sent. A response with a larger body counts as large.
pub(super) const CHUNK_BYTES: usize = 16 << 10;

/// The body of a response. With HTTP/1 it is unchanged; with HTTP/2 it is split into chunks, which hyper requests one by
/// one as the client reads them.
pub(super) struct PacedBody<B> {
    body: B,
    delivery: Delivery,
}

enum Delivery {
    /// Unchanged: the body is small, or its size is unknown.
    Untracked,
    /// Unchanged. The guard lives until all bytes of the body are written.
    Tracked(Arc<UnreadResponse>),
    Chunked(Box<Chunks>),
}

struct Chunks {
    streams: Arc<Streams>,
    /// Bytes of the latest frame that are not delivered yet.
    rest: Bytes,
    /// Set while `rest` is larger than a chunk, or the body is known to be large.
    unread: Option<UnreadResponse>,
    /// Set while the service has not produced the next frame, so that the client does not time out.
    in_progress: Option<RequestInProgress>,
}

fn is_large(body: &impl Body) -> bool {
    body.size_hint().lower() > CHUNK_BYTES as u64
}

impl<B: Body<Data = Bytes>> PacedBody<B> {
    /// Returns an HTTP/1 body.
    pub(super) fn unchanged(body: B, activity: &Activity) -> Self {
        let delivery = if is_large(&body) {
            Delivery::Tracked(Arc::new(UnreadResponse::new(activity.streams())))
        } else {
            Delivery::Untracked
        };
        Self { body, delivery }
    }

    /// Returns an HTTP/2 body.
    pub(super) fn chunked(body: B, streams: &Arc<Streams>) -> Self {
        let unread = is_large(&body).then(|| UnreadResponse::new(streams));
        let chunks = Chunks { streams: Arc::clone(streams), rest: Bytes::new(), unread, in_progress: None };
        Self { body, delivery: Delivery::Chunked(Box::new(chunks)) }
    }
}

impl Chunks {
    /// Removes the next chunk from the rest.
    fn next_chunk(&mut self) -> Bytes {
        if self.rest.len() > CHUNK_BYTES {
            self.unread.get_or_insert_with(|| UnreadResponse::new(&self.streams));
            return self.rest.split_to(CHUNK_BYTES);
        }
        let last = std::mem::take(&mut self.rest);
        match self.unread.take() {
            None => last,
            // A slice would keep the memory of the complete frame.
            Some(_) => Bytes::copy_from_slice(&last),
        }
    }

    fn poll_chunk<B: Body<Data = Bytes> + Unpin>(
        &mut self,
        body: &mut B,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        if !self.rest.is_empty() {
            return Poll::Ready(Some(Ok(Frame::data(self.next_chunk()))));
        }
        let polled = Pin::new(body).poll_frame(context);
        if polled.is_pending() && self.in_progress.is_none() {
            self.in_progress = Some(RequestInProgress::new(&self.streams));
        }
        let polled = ready!(polled);
        self.in_progress = None;
        Poll::Ready(polled.map(|frame| {
            frame.map(|frame| match frame.into_data() {
                Ok(data) => {
                    self.rest = data;
                    Frame::data(self.next_chunk())
                }
                Err(other) => other,
            })
        }))
    }
}

/// Bytes of a large response, with its guard.
struct TrackedBytes(
    Bytes,
    #[expect(dead_code, reason = "the guard acts when it is dropped")] Arc<UnreadResponse>,
);

impl AsRef<[u8]> for TrackedBytes {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl<B: Body<Data = Bytes> + Unpin> Body for PacedBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let Self { body, delivery } = &mut *self;
        match delivery {
            Delivery::Untracked => Pin::new(body).poll_frame(context),
            Delivery::Tracked(unread) => {
                let polled = ready!(Pin::new(body).poll_frame(context));
                let track = |data| Bytes::from_owner(TrackedBytes(data, Arc::clone(unread)));
                Poll::Ready(polled.map(|frame| frame.map(|frame| frame.map_data(track))))
            }
            Delivery::Chunked(chunks) => chunks.poll_chunk(body, context),
        }
    }

    fn is_end_stream(&self) -> bool {
        let is_delivered = match &self.delivery {
            Delivery::Chunked(chunks) => chunks.rest.is_empty(),
            Delivery::Untracked | Delivery::Tracked(_) => true,
        };
        is_delivered && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let mut hint = self.body.size_hint();
        if let Delivery::Chunked(chunks) = &self.delivery {
            let rest = chunks.rest.len() as u64;
            // The upper bound is raised first, because the lower bound must not exceed it.
            if let Some(upper) = hint.upper() {
                hint.set_upper(upper + rest);
            }
            hint.set_lower(hint.lower() + rest);
        }
        hint
    }
}
