//! What the file says about configuration of envoyproxy/ratelimit.

use std::path::PathBuf;

use serde_json::{Value as Json, json};
use slidegate::Algorithm;

use super::containers::Mapping;
use super::field::{Field, Fields, Kind};
use super::kinds::{OneOf, PathTo, Word};
use super::review::Review;
use super::tree::{Node, Value};
use crate::envoy::{Body, Settings, Tell};

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
const BODY: Field<BodyForm> = Field::new(
    "body",
    BodyForm,
    "The body of a denial: a sentence, which clients of gRPC get as the message, a problem document, or none.",
)
.usual("text");

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
        body: fields.get(&BODY, review).unwrap_or(usual.body),
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

impl Word for Body {
    const ALL: &'static [(&'static str, Self)] =
        &[("text", Self::Text), ("problem", Self::Problem), ("off", Self::Off)];
}

/// The form of a body. `true` is a problem document and `false` none, as before there was a choice.
#[derive(Clone, Copy)]
struct BodyForm;

impl Kind for BodyForm {
    type Value = Body;

    fn read(&self, node: &Node, path: &str, review: &mut Review) -> Option<Body> {
        match &node.value {
            Value::Scalar { text, is_plain: true } if text == "true" => Some(Body::Problem),
            Value::Scalar { text, is_plain: true } if text == "false" => Some(Body::Off),
            _ => OneOf::ANY.read(node, path, review),
        }
    }

    fn schema(&self) -> Json {
        json!({"enum": ["text", "problem", "off", true, false]})
    }

    fn allowed(&self) -> String {
        OneOf::<Body>::ANY.allowed()
    }
}
