//! Answers in pieces, so that it is known whether they are taken.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use axum::body::Bytes;
use hyper::body::{Body, Frame, SizeHint};

use super::limits::PIECE_BYTES;
use super::streams::{Streams, Waiting, Work};

/// The body of an answer: as it is with HTTP/1, and in pieces with HTTP/2, which asks for one after the other as the
/// client takes them.
pub(super) struct Paced<B> {
    body: B,
    pace: Option<Box<Pace>>,
}

struct Pace {
    streams: Arc<Streams>,
    /// What was said and not yet handed on.
    rest: Bytes,
    /// While there is more to say than one piece.
    waiting: Option<Waiting>,
    /// While it is not the client that is waited for.
    work: Option<Work>,
}

impl<B: Body<Data = Bytes>> Paced<B> {
    /// As it is.
    pub(super) fn whole(body: B) -> Self {
        Self { body, pace: None }
    }

    /// In pieces.
    pub(super) fn in_pieces(body: B, streams: &Arc<Streams>) -> Self {
        let is_large = body.size_hint().lower() > PIECE_BYTES as u64;
        let waiting = is_large.then(|| Waiting::new(streams));
        let pace = Pace { streams: Arc::clone(streams), rest: Bytes::new(), waiting, work: None };
        Self { body, pace: Some(Box::new(pace)) }
    }
}

impl Pace {
    /// What is handed on now of what is left.
    fn piece(&mut self) -> Bytes {
        if self.rest.len() > PIECE_BYTES {
            let waiting = self.waiting.get_or_insert_with(|| Waiting::new(&self.streams));
            waiting.touch();
            return self.rest.split_to(PIECE_BYTES);
        }
        let last = std::mem::take(&mut self.rest);
        match &self.waiting {
            None => last,
            // A copy: as a part of the whole it would keep all of it.
            Some(waiting) => {
                waiting.touch();
                Bytes::copy_from_slice(&last)
            }
        }
    }
}

impl<B: Body<Data = Bytes> + Unpin> Body for Paced<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let Self { body, pace } = &mut *self;
        let Some(pace) = pace else { return Pin::new(body).poll_frame(context) };
        if !pace.rest.is_empty() {
            return Poll::Ready(Some(Ok(Frame::data(pace.piece()))));
        }
        let polled = Pin::new(body).poll_frame(context);
        if polled.is_pending() && pace.work.is_none() {
            pace.work = Some(Work::new(&pace.streams));
        }
        let polled = ready!(polled);
        pace.work = None;
        Poll::Ready(polled.map(|frame| {
            frame.map(|frame| match frame.into_data() {
                Ok(data) => {
                    pace.rest = data;
                    Frame::data(pace.piece())
                }
                Err(other) => other,
            })
        }))
    }

    fn is_end_stream(&self) -> bool {
        self.pace.as_ref().is_none_or(|pace| pace.rest.is_empty()) && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let mut hint = self.body.size_hint();
        if let Some(pace) = &self.pace {
            let rest = pace.rest.len() as u64;
            // The larger first: neither may ever be beyond the other.
            if let Some(upper) = hint.upper() {
                hint.set_upper(upper + rest);
            }
            hint.set_lower(hint.lower() + rest);
        }
        hint
    }
}
