//! Answers in pieces, so that it is known whether they are taken.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use axum::body::Bytes;
use hyper::body::{Body, Frame, SizeHint};

use super::activity::Activity;
use super::limits::PIECE_BYTES;
use super::streams::{Streams, Waiting, Work};

/// The body of an answer: as it is with HTTP/1, and in pieces with HTTP/2, which asks for one after the other as the
/// client takes them.
pub(super) struct PacedBody<B> {
    body: B,
    pace: WriteProgress,
}

enum WriteProgress {
    /// A small one, or one that has no end to be waited for.
    BoundedInteger,
    /// A large one, which is waited for until nobody has any of it.
    Large(Arc<Waiting>),
    Chunks(Box<Chunks>),
}

struct Chunks {
    streams: Arc<Streams>,
    /// What was said and not yet handed on.
    rest: Bytes,
    /// While there is more to say than one piece.
    waiting: Option<Waiting>,
    /// While it is not the client that is waited for.
    work: Option<Work>,
}

fn is_large(body: &impl Body) -> bool {
    body.size_hint().lower() > PIECE_BYTES as u64
}

impl<B: Body<Data = Bytes>> PacedBody<B> {
    /// As it is.
    pub(super) fn whole(body: B, activity: &Activity) -> Self {
        let pace = if is_large(&body) {
            WriteProgress::Large(Arc::new(Waiting::new(activity.streams())))
        } else {
            WriteProgress::BoundedInteger
        };
        Self { body, pace }
    }

    /// In pieces.
    pub(super) fn in_pieces(body: B, streams: &Arc<Streams>) -> Self {
        let waiting = is_large(&body).then(|| Waiting::new(streams));
        let pieces = Chunks { streams: Arc::clone(streams), rest: Bytes::new(), waiting, work: None };
        Self { body, pace: WriteProgress::Chunks(Box::new(pieces)) }
    }
}

impl Chunks {
    /// What is handed on now of what is left.
    fn piece(&mut self) -> Bytes {
        if self.rest.len() > PIECE_BYTES {
            self.waiting.get_or_insert_with(|| Waiting::new(&self.streams));
            return self.rest.split_to(PIECE_BYTES);
        }
        let last = std::mem::take(&mut self.rest);
        match self.waiting.take() {
            None => last,
            // A copy: as a part of the whole it would keep all of it.
            Some(_) => Bytes::copy_from_slice(&last),
        }
    }

    fn poll_piece<B: Body<Data = Bytes> + Unpin>(
        &mut self,
        body: &mut B,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        if !self.rest.is_empty() {
            return Poll::Ready(Some(Ok(Frame::data(self.piece()))));
        }
        let polled = Pin::new(body).poll_frame(context);
        if polled.is_pending() && self.work.is_none() {
            self.work = Some(Work::new(&self.streams));
        }
        let polled = ready!(polled);
        self.work = None;
        Poll::Ready(polled.map(|frame| {
            frame.map(|frame| match frame.into_data() {
                Ok(data) => {
                    self.rest = data;
                    Frame::data(self.piece())
                }
                Err(other) => other,
            })
        }))
    }
}

/// Bytes that are waited for until they have left.
struct TrackedBytes(Bytes, #[expect(dead_code, reason = "it is there for as long as they are")] Arc<Waiting>);

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
        let Self { body, pace } = &mut *self;
        match pace {
            WriteProgress::BoundedInteger => Pin::new(body).poll_frame(context),
            WriteProgress::Large(waiting) => {
                let polled = ready!(Pin::new(body).poll_frame(context));
                let await_all = |data| Bytes::from_owner(TrackedBytes(data, Arc::clone(waiting)));
                Poll::Ready(polled.map(|frame| frame.map(|frame| frame.map_data(await_all))))
            }
            WriteProgress::Chunks(pieces) => pieces.poll_piece(body, context),
        }
    }

    fn is_end_stream(&self) -> bool {
        let is_handed_on = match &self.pace {
            WriteProgress::Chunks(pieces) => pieces.rest.is_empty(),
            WriteProgress::BoundedInteger | WriteProgress::Large(_) => true,
        };
        is_handed_on && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let mut hint = self.body.size_hint();
        if let WriteProgress::Chunks(pieces) = &self.pace {
            let rest = pieces.rest.len() as u64;
            // The larger first: neither may ever be beyond the other.
            if let Some(upper) = hint.upper() {
                hint.set_upper(upper + rest);
            }
            hint.set_lower(hint.lower() + rest);
        }
        hint
    }
}
