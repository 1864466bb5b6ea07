//! Request bodies of the admin API.

use std::time::Duration;

use axum::body::Bytes;
use serde::Deserialize;
use serde_json::Value;
use slidegate::parse_window;
use utoipa::ToSchema;

use slidegate_config::{BoundedInteger, QuotaSpec};
use slidegate_engine::changes::Timestamp;
use slidegate_engine::{BlockMs, Cost, Rejection, parse_json};

/// Maximum length of a note.
const MAX_NOTE_BYTES: usize = 500;
/// Maximum time between a change and its expiry.
const MAX_EXPIRY: Duration = Duration::from_hours(24 * 366 * 10);

/// Body of a change. Exactly one of `mode`, `quotas` and `tier` is required.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ChangeFields {
    /// `enforce`, `shadow` or `off`.
    pub(super) mode: Option<String>,
    #[schema(value_type = Option<Vec<QuotaSpec>>)]
    pub(super) quotas: Option<Vec<Value>>,
    /// Tier to assign to the key.
    pub(super) tier: Option<String>,
    /// Expiry as a timestamp.
    until: Option<String>,
    /// Expiry as a duration from now.
    #[serde(rename = "for")]
    duration: Option<String>,
    /// Reason, for the audit log.
    note: Option<String>,
}

/// Body of a reset or a refund.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RefundFields {
    /// Cost to refund, 1 by default. A reset has none.
    #[schema(value_type = Option<u64>, maximum = 281_474_976_710_656_u64)]
    pub(super) cost: Option<Cost>,
    pub(super) note: Option<String>,
}

/// Body of a block.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct BlockFields {
    /// Duration of the block, 1ms to 366d.
    #[serde(rename = "for")]
    #[schema(value_type = String)]
    duration: Option<String>,
    /// Reason, for the audit log.
    pub(super) note: Option<String>,
}

impl BlockFields {
    pub(super) fn for_ms(&self) -> Result<BlockMs, Rejection> {
        let rejection = |detail: &str| Rejection::out_of_range("for", detail);
        let duration = self
            .duration
            .as_deref()
            .ok_or_else(|| rejection("is missing; give a duration such as 10m, up to 366d"))?;
        let duration = parse_window(duration).map_err(|error| rejection(error.message()))?;
        Ok(BoundedInteger(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)))
    }
}

/// Body with an optional reason only.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct NoteFields {
    pub(super) note: Option<String>,
}

/// Decodes a body. An empty body has no fields.
pub(super) fn read<T: for<'a> Deserialize<'a> + Default>(body: &Bytes) -> Result<T, Rejection> {
    if body.trim_ascii().is_empty() {
        return Ok(T::default());
    }
    let text = str::from_utf8(body)
        .map_err(|error| Rejection::malformed(format!("the body is not UTF-8: {error}")))?;
    if !text.trim_ascii_start().starts_with('{') {
        return Err(Rejection::malformed("the body is not a JSON object"));
    }
    parse_json(text)
}

pub(super) fn checked_note(note: Option<String>) -> Result<Option<String>, Rejection> {
    match note {
        Some(note) if note.len() > MAX_NOTE_BYTES => Err(Rejection::out_of_range(
            "note",
            format!("{} bytes; at most {MAX_NOTE_BYTES} are allowed", note.len()),
        )),
        note => Ok(note),
    }
}

impl ChangeFields {
    pub(super) fn note(&self) -> Result<Option<String>, Rejection> {
        checked_note(self.note.clone())
    }

    /// Returns the expiry of the change, if it has one.
    pub(super) fn expires_at(&self, now_ms: u64) -> Result<Option<Timestamp>, Rejection> {
        let (field, expires_at) = match (&self.until, &self.duration) {
            (None, None) => return Ok(None),
            (Some(_), Some(_)) => {
                return Err(Rejection::out_of_range(
                    "until",
                    "cannot be combined with for; give one of them",
                ));
            }
            (Some(until), None) => {
                ("until", Timestamp::parse(until).map_err(|detail| Rejection::out_of_range("until", detail))?)
            }
            (None, Some(duration)) => {
                let duration = parse_window(duration)
                    .map_err(|error| Rejection::out_of_range("for", error.message().to_owned()))?;
                (
                    "for",
                    Timestamp(now_ms.saturating_add(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX))),
                )
            }
        };
        let latest = now_ms.saturating_add(MAX_EXPIRY.as_millis() as u64);
        if expires_at.0 <= now_ms || expires_at.0 > latest {
            let detail = format!("{expires_at} is not within ten years after now, {}", Timestamp(now_ms));
            return Err(Rejection::out_of_range(field, detail));
        }
        Ok(Some(expires_at))
    }
}
