//! What the file says about connections, and about the log.

use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;
use serde_saphyr::Spanned;

use super::build::line_of;
use super::problem::Problem;
use super::span::up_to;
use crate::serve::{Limits, TlsFiles};
use crate::violations::ViolationLog;
use crate::whole::Whole;

/// The longest that a connection may be allowed to take for anything.
const HOUR: Duration = Duration::from_hours(1);

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LimitsFields {
    connections: Option<Spanned<Whole<1, 1_000_000>>>,
    head_timeout: Option<Spanned<String>>,
    body_timeout: Option<Spanned<String>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TlsFields {
    cert: PathBuf,
    key: PathBuf,
    client_ca: Option<PathBuf>,
}

pub(super) fn limits(fields: &LimitsFields, problems: &mut Vec<Problem>) -> Limits {
    let usual = Limits::default();
    let connections = fields.connections.as_ref().and_then(|connections| {
        let refuse =
            |message| problems.push(Problem::at(line_of(connections), "limits.connections", message));
        connections.value.checked().map_err(refuse).ok().and_then(|number| usize::try_from(number).ok())
    });
    Limits {
        connections: connections.unwrap_or(usual.connections),
        head_timeout: up_to(HOUR, "1h", "limits.head_timeout", fields.head_timeout.as_ref(), problems)
            .unwrap_or(usual.head_timeout),
        body_timeout: up_to(HOUR, "1h", "limits.body_timeout", fields.body_timeout.as_ref(), problems)
            .unwrap_or(usual.body_timeout),
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LogFields {
    violations: Option<Spanned<Whole<0, 10_000>>>,
    plain_keys: Option<bool>,
}

pub(super) fn log(fields: &LogFields, problems: &mut Vec<Problem>) -> ViolationLog {
    let usual = ViolationLog::default();
    let violations = fields.violations.as_ref().and_then(|violations| {
        let refuse = |message| problems.push(Problem::at(line_of(violations), "log.violations", message));
        violations.value.checked().map_err(refuse).ok().and_then(|number| u32::try_from(number).ok())
    });
    ViolationLog {
        per_second: violations.unwrap_or(usual.per_second),
        plain_keys: fields.plain_keys.unwrap_or(usual.plain_keys),
    }
}

pub(super) fn tls(fields: TlsFields) -> TlsFiles {
    TlsFiles { cert: fields.cert, key: fields.key, client_ca: fields.client_ca }
}
