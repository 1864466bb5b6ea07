//! From bytes to a request: size, shape and types.

use std::fmt;
use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use axum::body::Bytes;
use http_body_util::BodyExt;
use hyper::body::{Body as HttpBody, Incoming};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::error::Category;
use serde_json::value::RawValue;
use slidegate::MAX_LIMIT;

use super::body_budget::{self, BudgetPermit};
use crate::request::{Batch, Many, Rejection, RejectionKind, Request};
use crate::timer::timer;

const MAX_SINGLE_BYTES: usize = 64 << 10;
const MAX_BATCH_BYTES: usize = 1 << 20;
/// So many requests of a batch are each told what is wrong with them.
const MAX_REFUSED: usize = 1000;

/// What a body asks: one request or several.
pub(super) enum Body<'a> {
    Single(Request<'a>),
    Batch(Batch<'a>),
}

/// The body of a request, or what has come of it.
#[derive(Default)]
struct Gathered {
    bytes: Vec<u8>,
    room: Option<BudgetPermit>,
}

/// Reads a body, of any content type: whoever posts JSON with curl forgets to say so. The room is given back when what it
/// asks is decided.
pub(super) async fn read(
    body: Incoming,
    patience: Duration,
) -> Result<(Bytes, Option<BudgetPermit>), Rejection> {
    within(patience, gather(body, begins_a_batch)).await
}

/// What a body asks.
pub(super) fn understand(bytes: &[u8]) -> Result<Body<'_>, Rejection> {
    let text = utf8(bytes)?;
    match text.trim_ascii_start().as_bytes().first() {
        Some(b'[') => decode_each(text).map(Body::Batch),
        Some(b'{') => decode(text).map(Body::Single),
        _ => {
            let detail = "the body is neither a JSON object nor an array of them";
            Err(Rejection::new(RejectionKind::Malformed, detail))
        }
    }
}

/// The same for one message of another protocol.
pub(super) async fn read_single<T: DeserializeOwned>(
    body: axum::body::Body,
    patience: Duration,
) -> Result<T, Rejection> {
    let (bytes, _) = within(patience, gather(body, |_| false)).await?;
    decode(utf8(&bytes)?)
}

fn begins_a_batch(bytes: &[u8]) -> bool {
    bytes.trim_ascii_start().first() == Some(&b'[')
}

fn utf8(bytes: &[u8]) -> Result<&str, Rejection> {
    str::from_utf8(bytes)
        .map_err(|error| Rejection::new(RejectionKind::Malformed, format!("the body is not UTF-8: {error}")))
}

/// What comes of `reading`, unless it takes too long.
///
/// A body has mostly come along with its head. So there is no timer before it turns out that it has not.
async fn within<T>(
    patience: Duration,
    reading: impl Future<Output = Result<T, Rejection>>,
) -> Result<T, Rejection> {
    let (mut reading, mut end) = (pin!(reading), None);
    poll_fn(move |context| {
        if let Poll::Ready(read) = reading.as_mut().poll(context) {
            return Poll::Ready(read);
        }
        let end = end.get_or_insert_with(|| timer(patience));
        end.as_mut().poll(context).map(|()| {
            let detail = format!("the body was not complete within {patience:?}");
            Err(Rejection::new(RejectionKind::TooSlow, detail))
        })
    })
    .await
}

/// All of a body. It is copied only if it comes in pieces. It is large only if what has come of it `may_be_large`.
async fn gather<B: HttpBody<Data = Bytes, Error: fmt::Display> + Unpin>(
    mut body: B,
    may_be_large: fn(&[u8]) -> bool,
) -> Result<(Bytes, Option<BudgetPermit>), Rejection> {
    if body.size_hint().lower() > MAX_BATCH_BYTES as u64 {
        return Err(too_large());
    }
    let first = next(&mut body).await?.unwrap_or_default();
    let mut more = next(&mut body).await?;
    if more.is_none() && first.len() <= MAX_SINGLE_BYTES {
        return Ok((first, None));
    }
    let mut whole = Gathered::default();
    whole.add(&first, may_be_large)?;
    while let Some(piece) = more {
        whole.add(&piece, may_be_large)?;
        more = next(&mut body).await?;
    }
    Ok((whole.bytes.into(), whole.room))
}

impl Gathered {
    fn add(&mut self, piece: &[u8], may_be_large: fn(&[u8]) -> bool) -> Result<(), Rejection> {
        let length = self.bytes.len() + piece.len();
        if length > MAX_SINGLE_BYTES {
            let begin = if self.bytes.trim_ascii_start().is_empty() { piece } else { &self.bytes };
            let is_known = self.room.is_some();
            if length > MAX_BATCH_BYTES || !(is_known || may_be_large(begin)) {
                return Err(too_large());
            }
            self.grow(length)?;
        }
        self.bytes.extend_from_slice(piece);
        Ok(())
    }

    /// Makes room for `length` bytes, if there is any.
    fn grow(&mut self, length: usize) -> Result<(), Rejection> {
        let held = self.room.as_ref().map_or(0, BudgetPermit::num_permits);
        if length <= held {
            return Ok(());
        }
        let wanted = length.next_power_of_two();
        let more = body_budget::for_body(wanted - held).ok_or_else(busy)?;
        match &mut self.room {
            None => self.room = Some(more),
            Some(room) => room.merge(more),
        }
        self.bytes.reserve_exact(wanted - self.bytes.len());
        Ok(())
    }
}

async fn next<B: HttpBody<Data = Bytes, Error: fmt::Display> + Unpin>(
    body: &mut B,
) -> Result<Option<Bytes>, Rejection> {
    while !body.is_end_stream() {
        let Some(frame) = body.frame().await else { break };
        let frame = frame.map_err(|error| {
            Rejection::new(RejectionKind::Malformed, format!("the body could not be read: {error}"))
        })?;
        // Trailers say nothing.
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
        "there are too many bodies of more than {MAX_SINGLE_BYTES} bytes at the moment; try again, or send smaller batches"
    );
    Rejection::new(RejectionKind::Busy, detail)
}

/// Decodes JSON, or says where it is wrong.
pub(crate) fn decode<'a, T: Deserialize<'a>>(text: &'a str) -> Result<T, Rejection> {
    if let Ok(value) = serde_json::from_str(text) {
        return Ok(value);
    }
    // A second pass finds the path of the error. Valid bodies do not pay for the tracking.
    let mut json = serde_json::Deserializer::from_str(text);
    let value = serde_path_to_error::deserialize(&mut json).map_err(|error| {
        let path = error.path().to_string();
        rejection(&path, error.inner())
    })?;
    json.end().map_err(|error| rejection(".", &error))?;
    Ok(value)
}

/// Decodes an array of requests. One that is JSON but no request is refused in its place; what is not JSON refuses all.
fn decode_each(text: &str) -> Result<Batch<'_>, Rejection> {
    if let Ok(requests) = serde_json::from_str::<Many<Request<'_>>>(text) {
        return Ok(Batch(requests.0.into_iter().map(Ok).collect()));
    }
    // A second pass finds the invalid requests. A valid JSON string may still not be Unicode: half of a surrogate pair.
    let parts = decode::<Many<&RawValue>>(text)?.0;
    let (mut requests, mut refused) = (Vec::with_capacity(parts.len()), 0);
    for part in parts {
        let request = decode(part.get());
        // To say of each what is wrong takes longer than to decide it.
        refused += usize::from(request.is_err());
        if refused > MAX_REFUSED {
            let detail = format!(
                "more than {MAX_REFUSED} of the requests are not valid; send them in smaller batches"
            );
            return Err(Rejection::new(RejectionKind::OutOfRange, detail));
        }
        requests.push(request);
    }
    Ok(Batch(requests))
}

/// What to say of a field that is not there.
fn missing(name: &str) -> String {
    let takes = match name {
        "limit" => "; it takes a whole number, such as 100",
        "window" => "; it takes a time such as 30s, 15m or 1d",
        _ => "",
    };
    format!("is missing{takes}")
}

fn rejection(path: &str, error: &serde_json::Error) -> Rejection {
    let message = error.to_string();
    // serde_json counts a number too large for a float among errors of syntax; it is one of range.
    let is_huge = message.starts_with("number out of range");
    if error.classify() != Category::Data && !is_huge {
        return Rejection::new(RejectionKind::Malformed, format!("the body is not valid JSON: {message}"));
    }
    let place = format!(" at line {} column {}", error.line(), error.column());
    let detail = if is_huge {
        format!("the number is too large; no field takes more than {MAX_LIMIT}")
    } else {
        message.strip_suffix(&place).unwrap_or(&message).to_owned()
    };
    let path = if path == "." { "" } else { path };
    let named = |what: &str| detail.strip_prefix(what)?.strip_prefix(" field `")?.strip_suffix('`');
    let (name, detail) = match (named("missing"), named("duplicate")) {
        (Some(name), _) => (name, missing(name)),
        (_, Some(name)) => (name, "it is given twice".to_owned()),
        (None, None) => ("", detail.clone()),
    };
    let parts = [path, name].map(|part| Some(part).filter(|part| !part.is_empty()));
    let field = parts.into_iter().flatten().collect::<Vec<_>>().join(".");
    let field = (!field.is_empty()).then_some(field);
    Rejection { field, ..Rejection::new(RejectionKind::OutOfRange, detail) }
}
