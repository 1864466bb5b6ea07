//! What a change says.

use std::time::Duration;

use axum::body::Bytes;
use serde::Deserialize;
use serde_json::Value;
use slidegate::parse_window;
use utoipa::ToSchema;

use crate::changes::Moment;
use crate::http::decode;
use crate::quota_spec::QuotaSpec;
use crate::request::{BlockMs, Cost, Refusal};
use crate::whole::Whole;

/// A note is for people.
const MOST_NOTE_BYTES: usize = 500;
/// A change that is to end, ends within this.
const MOST_AHEAD: Duration = Duration::from_hours(24 * 366 * 10);

/// What may be said about any change. Exactly one of `mode`, `quotas` and `tier` is given.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ChangeFields {
    /// `enforce`, `shadow` or `off`.
    pub(super) mode: Option<String>,
    #[schema(value_type = Option<Vec<QuotaSpec>>)]
    pub(super) quotas: Option<Vec<Value>>,
    /// The tier into which a key is put.
    pub(super) tier: Option<String>,
    /// When it ends by itself: a moment.
    until: Option<String>,
    /// The same as a time from now.
    #[serde(rename = "for")]
    lasting: Option<String>,
    /// Why.
    note: Option<String>,
}

/// How much is given back.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RefundFields {
    /// 1 unless given. A reset gives back everything, and takes none.
    #[schema(value_type = Option<u64>, maximum = 281_474_976_710_656_u64)]
    pub(super) cost: Option<Cost>,
    pub(super) note: Option<String>,
}

/// For how long a key is blocked.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct BlockFields {
    /// A time from now, 1ms to 366d.
    #[serde(rename = "for")]
    #[schema(value_type = String)]
    span: Option<String>,
    /// Why.
    pub(super) note: Option<String>,
}

impl BlockFields {
    pub(super) fn for_ms(&self) -> Result<BlockMs, Refusal> {
        let refused = |why: &str| Refusal::out_of_range("for", why);
        let span = self
            .span
            .as_deref()
            .ok_or_else(|| refused("is missing; it takes a time such as 10m, up to 366d"))?;
        let span = parse_window(span).map_err(|error| refused(error.message()))?;
        Ok(Whole(u64::try_from(span.as_millis()).unwrap_or(u64::MAX)))
    }
}

/// A reason, and nothing else.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct NoteFields {
    pub(super) note: Option<String>,
}

/// The body, or what is wrong with it. One that is empty says nothing.
pub(super) fn read<T: for<'a> Deserialize<'a> + Default>(body: &Bytes) -> Result<T, Refusal> {
    if body.trim_ascii().is_empty() {
        return Ok(T::default());
    }
    let text = str::from_utf8(body)
        .map_err(|error| Refusal::malformed(format!("the body is not UTF-8: {error}")))?;
    if !text.trim_ascii_start().starts_with('{') {
        return Err(Refusal::malformed("the body is not a JSON object"));
    }
    decode(text)
}

pub(super) fn checked_note(note: Option<String>) -> Result<Option<String>, Refusal> {
    match note {
        Some(note) if note.len() > MOST_NOTE_BYTES => Err(Refusal::out_of_range(
            "note",
            format!("{} bytes; at most {MOST_NOTE_BYTES} are allowed", note.len()),
        )),
        note => Ok(note),
    }
}

impl ChangeFields {
    pub(super) fn note(&self) -> Result<Option<String>, Refusal> {
        checked_note(self.note.clone())
    }

    /// When it ends, if it does.
    pub(super) fn end(&self, now_ms: u64) -> Result<Option<Moment>, Refusal> {
        let (field, end) = match (&self.until, &self.lasting) {
            (None, None) => return Ok(None),
            (Some(_), Some(_)) => {
                return Err(Refusal::out_of_range("until", "goes without for: give one of both"));
            }
            (Some(until), None) => {
                ("until", Moment::parse(until).map_err(|why| Refusal::out_of_range("until", why))?)
            }
            (None, Some(span)) => {
                let span = parse_window(span)
                    .map_err(|error| Refusal::out_of_range("for", error.message().to_owned()))?;
                ("for", Moment(now_ms.saturating_add(u64::try_from(span.as_millis()).unwrap_or(u64::MAX))))
            }
        };
        let latest = now_ms.saturating_add(MOST_AHEAD.as_millis() as u64);
        if end.0 <= now_ms || end.0 > latest {
            let detail = format!("{end} is not in the next ten years, which begin at {}", Moment(now_ms));
            return Err(Refusal::out_of_range(field, detail));
        }
        Ok(Some(end))
    }
}
