//! From bytes to a request: size, shape and types.

use std::time::Duration;

use axum::body::Bytes;
use http_body_util::{BodyExt, LengthLimitError, Limited};
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
pub(super) async fn read(body: axum::body::Body, patience: Duration) -> Result<Body, Refusal> {
    let bytes = whole(body, patience).await?;
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
    let bytes = whole(body, patience).await?;
    if bytes.len() > MAX_SINGLE_BYTES {
        return Err(too_large());
    }
    decode(utf8(&bytes)?)
}

async fn whole(body: axum::body::Body, patience: Duration) -> Result<Bytes, Refusal> {
    match tokio::time::timeout(patience, bounded(body)).await {
        Ok(bytes) => bytes,
        Err(_) => {
            let detail = format!("the body was not complete within {patience:?}");
            Err(Refusal::new(RefusalKind::TooSlow, detail))
        }
    }
}

fn utf8(bytes: &[u8]) -> Result<&str, Refusal> {
    str::from_utf8(bytes)
        .map_err(|error| Refusal::new(RefusalKind::Malformed, format!("the body is not UTF-8: {error}")))
}

async fn bounded(body: axum::body::Body) -> Result<Bytes, Refusal> {
    match Limited::new(body, MAX_BATCH_BYTES).collect().await {
        Ok(collected) => Ok(collected.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => Err(too_large()),
        Err(error) => {
            Err(Refusal::new(RefusalKind::Malformed, format!("the body could not be read: {error}")))
        }
    }
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
