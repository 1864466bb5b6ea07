//! Reads request bodies within limits of size and time.

use std::fmt;
use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use axum::body::Bytes;
use http_body_util::BodyExt;
use hyper::body::{Body as HttpBody, Incoming};
use serde::de::DeserializeOwned;
use slidegate_engine::{Rejection, RejectionKind, parse_json};

use super::body_budget::{self, BudgetPermit};
use super::request_json::utf8;
use crate::net::timer;

/// Maximum size of a body with a single request.
const MAX_SINGLE_BYTES: usize = 64 << 10;
/// Maximum size of a batch.
const MAX_BATCH_BYTES: usize = 1 << 20;

/// The part of a body received so far.
#[derive(Default)]
struct BodyBuffer {
    bytes: Vec<u8>,
    permit: Option<BudgetPermit>,
}

/// Reads a body with one request or a batch. A large body holds its permit until it is decided.
///
/// Any content type is accepted, because `curl --data` sends JSON as a form.
pub(super) async fn read(
    body: Incoming,
    timeout: Duration,
) -> Result<(Bytes, Option<BudgetPermit>), Rejection> {
    with_timeout(timeout, collect(body, is_batch)).await
}

/// Reads and decodes a body with a single message.
pub(crate) async fn read_single<T: DeserializeOwned>(
    body: axum::body::Body,
    timeout: Duration,
) -> Result<T, Rejection> {
    let (bytes, _) = with_timeout(timeout, collect(body, |_| false)).await?;
    parse_json(utf8(&bytes)?)
}

/// Returns whether a body that begins with `bytes` is a batch.
fn is_batch(bytes: &[u8]) -> bool {
    bytes.trim_ascii_start().first() == Some(&b'[')
}

/// Limits the time for reading a body.
///
/// Most bodies arrive together with the head of the request, so a timer is set only if `reading` is pending.
async fn with_timeout<T>(
    timeout: Duration,
    reading: impl Future<Output = Result<T, Rejection>>,
) -> Result<T, Rejection> {
    let (mut reading, mut deadline) = (pin!(reading), None);
    poll_fn(move |context| {
        if let Poll::Ready(body) = reading.as_mut().poll(context) {
            return Poll::Ready(body);
        }
        let deadline = deadline.get_or_insert_with(|| timer(timeout));
        deadline.as_mut().poll(context).map(|()| {
            let detail = format!("the body was not complete within {timeout:?}");
            Err(Rejection::new(RejectionKind::TooSlow, detail))
        })
    })
    .await
}

/// Receives a complete body. A body in one frame is not copied. A body may exceed the size of a single request only if
/// `may_be_large` returns true for its first bytes.
async fn collect<B: HttpBody<Data = Bytes, Error: fmt::Display> + Unpin>(
    mut body: B,
    may_be_large: fn(&[u8]) -> bool,
) -> Result<(Bytes, Option<BudgetPermit>), Rejection> {
    if body.size_hint().lower() > MAX_BATCH_BYTES as u64 {
        return Err(too_large());
    }
    let first = next_frame(&mut body).await?.unwrap_or_default();
    let mut next = next_frame(&mut body).await?;
    if next.is_none() && first.len() <= MAX_SINGLE_BYTES {
        return Ok((first, None));
    }
    let mut buffer = BodyBuffer::default();
    buffer.append(&first, may_be_large)?;
    while let Some(frame) = next {
        buffer.append(&frame, may_be_large)?;
        next = next_frame(&mut body).await?;
    }
    Ok((buffer.bytes.into(), buffer.permit))
}

impl BodyBuffer {
    fn append(&mut self, frame: &[u8], may_be_large: fn(&[u8]) -> bool) -> Result<(), Rejection> {
        let length = self.bytes.len() + frame.len();
        if length > MAX_SINGLE_BYTES {
            let start = if self.bytes.trim_ascii_start().is_empty() { frame } else { &self.bytes };
            let is_large = self.permit.is_some();
            if length > MAX_BATCH_BYTES || !(is_large || may_be_large(start)) {
                return Err(too_large());
            }
            self.grow(length)?;
        }
        self.bytes.extend_from_slice(frame);
        Ok(())
    }

    /// Reserves memory for `length` bytes, within the budget.
    fn grow(&mut self, length: usize) -> Result<(), Rejection> {
        let reserved = self.permit.as_ref().map_or(0, BudgetPermit::num_permits);
        if length <= reserved {
            return Ok(());
        }
        let capacity = length.next_power_of_two();
        let added = body_budget::for_body(capacity - reserved).ok_or_else(busy)?;
        match &mut self.permit {
            None => self.permit = Some(added),
            Some(permit) => permit.merge(added),
        }
        self.bytes.reserve_exact(capacity - self.bytes.len());
        Ok(())
    }
}

/// Receives the next data frame, and skips trailers.
async fn next_frame<B: HttpBody<Data = Bytes, Error: fmt::Display> + Unpin>(
    body: &mut B,
) -> Result<Option<Bytes>, Rejection> {
    while !body.is_end_stream() {
        let Some(frame) = body.frame().await else { break };
        let frame = frame.map_err(|error| {
            Rejection::new(RejectionKind::Malformed, format!("the body could not be read: {error}"))
        })?;
        if let Ok(data) = frame.into_data() {
            return Ok(Some(data));
        }
    }
    Ok(None)
}

fn too_large() -> Rejection {
    let detail = format!(
        "the body is too large; {MAX_SINGLE_BYTES} bytes are allowed for an object, {MAX_BATCH_BYTES} for an array"
    );
    Rejection::new(RejectionKind::TooLarge, detail)
}

fn busy() -> Rejection {
    let detail = format!(
        "too many bodies of more than {MAX_SINGLE_BYTES} bytes are in progress; try again, or send smaller batches"
    );
    Rejection::new(RejectionKind::Busy, detail)
}
