//! From bytes to a request: size, shape and types.

use std::fmt;
use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use axum::body::Bytes;
use http_body_util::BodyExt;
use hyper::body::{Body as HttpBody, Incoming};
use serde::de::DeserializeOwned;
use serde_json::error::Category;
use slidegate::MAX_LIMIT;

use crate::request::{Batch, Refusal, RefusalKind, Request};

const MAX_SINGLE_BYTES: usize = 64 << 10;
const MAX_BATCH_BYTES: usize = 1 << 20;

/// A body that was read: one request, or several.
pub(super) enum Body {
    Single(Request),
    Batch(Batch),
}

/// Reads a body, of any content type: whoever posts JSON with curl forgets to say so.
pub(super) async fn read(body: Incoming, patience: Duration) -> Result<Body, Refusal> {
    let bytes = within(patience, gather(body)).await?;
    let text = utf8(&bytes)?;
    match text.trim_ascii_start().as_bytes().first() {
        Some(b'[') => decode(text).map(Body::Batch),
        Some(b'{') if bytes.len() > MAX_SINGLE_BYTES => Err(too_large()),
        Some(b'{') => decode(text).map(Body::Single),
        _ => {
            let detail = "the body is neither a JSON object nor an array of them";
            Err(Refusal::new(RefusalKind::Malformed, detail))
        }
    }
}

/// The same for one message of another protocol.
pub(super) async fn read_single<T: DeserializeOwned>(
    body: axum::body::Body,
    patience: Duration,
) -> Result<T, Refusal> {
    let bytes = within(patience, gather(body)).await?;
    if bytes.len() > MAX_SINGLE_BYTES {
        return Err(too_large());
    }
    decode(utf8(&bytes)?)
}

fn utf8(bytes: &[u8]) -> Result<&str, Refusal> {
    str::from_utf8(bytes)
        .map_err(|error| Refusal::new(RefusalKind::Malformed, format!("the body is not UTF-8: {error}")))
}

/// What comes of `reading`, unless it takes too long.
///
/// A body has mostly come along with its head. So there is no timer before it turns out that it has not.
async fn within<T>(
    patience: Duration,
    reading: impl Future<Output = Result<T, Refusal>>,
) -> Result<T, Refusal> {
    let (mut reading, mut end) = (pin!(reading), None);
    poll_fn(move |context| {
        if let Poll::Ready(read) = reading.as_mut().poll(context) {
            return Poll::Ready(read);
        }
        #[expect(clippy::disallowed_methods, reason = "a timeout, not a pause")]
        let end = end.get_or_insert_with(|| Box::pin(tokio::time::sleep(patience)));
        end.as_mut().poll(context).map(|()| {
            let detail = format!("the body was not complete within {patience:?}");
            Err(Refusal::new(RefusalKind::TooSlow, detail))
        })
    })
    .await
}

/// All of a body. It is copied only if it comes in pieces.
async fn gather<B: HttpBody<Data = Bytes, Error: fmt::Display> + Unpin>(
    mut body: B,
) -> Result<Bytes, Refusal> {
    let first = next(&mut body).await?.unwrap_or_default();
    if first.len() > MAX_BATCH_BYTES {
        return Err(too_large());
    }
    let Some(second) = next(&mut body).await? else { return Ok(first) };
    let (mut whole, mut more) = (first.to_vec(), second);
    loop {
        if whole.len() + more.len() > MAX_BATCH_BYTES {
            return Err(too_large());
        }
        whole.extend_from_slice(&more);
        match next(&mut body).await? {
            Some(piece) => more = piece,
            None => return Ok(whole.into()),
        }
    }
}

async fn next<B: HttpBody<Data = Bytes, Error: fmt::Display> + Unpin>(
    body: &mut B,
) -> Result<Option<Bytes>, Refusal> {
    while !body.is_end_stream() {
        let Some(frame) = body.frame().await else { break };
        let frame = frame.map_err(|error| {
            Refusal::new(RefusalKind::Malformed, format!("the body could not be read: {error}"))
        })?;
        // Trailers say nothing.
        if let Ok(data) = frame.into_data() {
            return Ok(Some(data));
        }
    }
    Ok(None)
}

fn too_large() -> Refusal {
    let detail = format!(
        "the body is too large; {MAX_SINGLE_BYTES} bytes are allowed for an object, {MAX_BATCH_BYTES} for an array"
    );
    Refusal::new(RefusalKind::TooLarge, detail)
}

/// Decodes JSON, or says where it is wrong.
pub(crate) fn decode<T: DeserializeOwned>(text: &str) -> Result<T, Refusal> {
    if let Ok(value) = serde_json::from_str(text) {
        return Ok(value);
    }
    // Once more, to say where it is wrong: to keep track of that costs whoever makes no mistake.
    let mut json = serde_json::Deserializer::from_str(text);
    let value = serde_path_to_error::deserialize(&mut json).map_err(|error| {
        let path = error.path().to_string();
        refusal(&path, error.inner())
    })?;
    json.end().map_err(|error| refusal(".", &error))?;
    Ok(value)
}

fn refusal(path: &str, error: &serde_json::Error) -> Refusal {
    let message = error.to_string();
    // serde_json counts a number too large for a float among errors of syntax; it is one of range.
    let is_huge = message.starts_with("number out of range");
    if error.classify() != Category::Data && !is_huge {
        return Refusal::new(RefusalKind::Malformed, format!("the body is not valid JSON: {message}"));
    }
    let place = format!(" at line {} column {}", error.line(), error.column());
    let detail = if is_huge {
        format!("the number is too large; no field takes more than {MAX_LIMIT}")
    } else {
        message.strip_suffix(&place).unwrap_or(&message).to_owned()
    };
    let field = (path != ".").then(|| path.to_owned());
    Refusal { field, ..Refusal::new(RefusalKind::OutOfRange, detail) }
}
