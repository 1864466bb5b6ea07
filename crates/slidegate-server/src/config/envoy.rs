//! What the file says about configuration of envoyproxy/ratelimit.

use std::path::PathBuf;

use slidegate::Algorithm;

use super::containers::Mapping;
use super::field::{Field, Fields};
use super::kinds::{Flag, OneOf, PathTo, Word};
use super::review::Review;
use crate::envoy::{Settings, Tell};

const CONFIG: Field<PathTo> = Field::new(
    "config",
    PathTo::FOLDER,
    "A folder of configuration of envoyproxy/ratelimit, one file for each domain.",
)
.required();
const ALGORITHM: Field<OneOf<Algorithm>> = Field::new(
    "algorithm",
    OneOf::ANY,
    "How its limits are counted: as they were, or without a double burst at the boundary by sliding-window.",
)
.usual("fixed-window");
const HEADERS: Field<OneOf<Tell>> =
    Field::new("headers", OneOf::ANY, "Which responses of Envoy get rate-limit headers.").usual("denied");
const BODY: Field<Flag> =
    Field::new("body", Flag, "Whether Envoy denies with a problem document as the body.").usual("true");

pub(super) const ENVOY: Mapping<EnvoyConfig> =
    Mapping { fields: &[&CONFIG, &ALGORITHM, &HEADERS, &BODY], one_of: &[], read: envoy };

/// Configuration of envoyproxy/ratelimit, and what is made of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EnvoyConfig {
    pub(crate) folder: PathBuf,
    pub(crate) settings: Settings,
}

fn envoy(fields: &Fields<'_>, review: &mut Review) -> Option<EnvoyConfig> {
    let usual = Settings::default();
    let settings = Settings {
        algorithm: fields.get(&ALGORITHM, review).unwrap_or(usual.algorithm),
        headers: fields.get(&HEADERS, review).unwrap_or(usual.headers),
        has_body: fields.get(&BODY, review).unwrap_or(usual.has_body),
    };
    let folder: PathBuf = fields.get(&CONFIG, review)?;
    if review.looks_around
        && let Err(error) = std::fs::read_dir(&folder)
    {
        let message = format!("{:?} cannot be read as a folder: {error}", folder.display().to_string());
        review.refuse(fields.line_of("config"), fields.path_of("config"), message);
    }
    Some(EnvoyConfig { folder, settings })
}

impl Word for Tell {
    const ALL: &'static [(&'static str, Self)] =
        &[("off", Self::Off), ("denied", Self::Denied), ("always", Self::Always)];
}
