//! Section `envoy`: the configuration of envoyproxy/ratelimit.

use std::path::PathBuf;

use serde_json::{Value as Json, json};
use slidegate::Algorithm;

use crate::envoy::{DenialBody, EnvoySettings, HeaderMode};
use crate::fields::containers::Mapping;
use crate::fields::diagnostics::Diagnostics;
use crate::fields::field::{Field, Fields, Kind};
use crate::fields::scalars::{FsPath, Keyword, OneOf};
use crate::fields::tree::{Node, Value};

const CONFIG: Field<FsPath> = Field::new(
    "config",
    FsPath::FOLDER,
    "Folder with the configuration of envoyproxy/ratelimit, one file per domain.",
)
.required();
const ALGORITHM: Field<OneOf<Algorithm>> = Field::new(
    "algorithm",
    OneOf::ANY,
    "Algorithm of its limits: fixed-window counts as envoyproxy/ratelimit does, sliding-window admits no double burst \
     at a window boundary.",
)
.with_default("fixed-window");
const HEADERS: Field<OneOf<HeaderMode>> =
    Field::new("headers", OneOf::ANY, "Responses of Envoy that carry rate-limit headers.")
        .with_default("denied");
const BODY: Field<BodyForm> = Field::new(
    "body",
    BodyForm,
    "Body of a denial: text is a sentence, which gRPC clients receive as the message; problem is a problem document; \
     off is no body.",
)
.with_default("text");

pub(crate) const ENVOY: Mapping<EnvoyConfig> =
    Mapping { fields: &[&CONFIG, &ALGORITHM, &HEADERS, &BODY], one_of: &[], read: envoy };

/// Folder with the configuration of envoyproxy/ratelimit, and its settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EnvoyConfig {
    pub folder: PathBuf,
    pub settings: EnvoySettings,
}

fn envoy(fields: &Fields<'_>, diagnostics: &mut Diagnostics) -> Option<EnvoyConfig> {
    let defaults = EnvoySettings::default();
    let settings = EnvoySettings {
        algorithm: fields.get(&ALGORITHM, diagnostics).unwrap_or(defaults.algorithm),
        headers: fields.get(&HEADERS, diagnostics).unwrap_or(defaults.headers),
        body: fields.get(&BODY, diagnostics).unwrap_or(defaults.body),
    };
    let folder: PathBuf = fields.get(&CONFIG, diagnostics)?;
    if diagnostics.follows_references
        && let Err(error) = std::fs::read_dir(&folder)
    {
        let message = format!("{:?} cannot be read as a folder: {error}", folder.display().to_string());
        diagnostics.report(fields.line_of("config"), fields.path_of("config"), message);
    }
    Some(EnvoyConfig { folder, settings })
}

impl Keyword for HeaderMode {
    fn all() -> impl Iterator<Item = (&'static str, Self)> {
        [("off", Self::Off), ("denied", Self::Denied), ("always", Self::Always)].into_iter()
    }
}

impl Keyword for DenialBody {
    fn all() -> impl Iterator<Item = (&'static str, Self)> {
        [("text", Self::Text), ("problem", Self::Problem), ("off", Self::Off)].into_iter()
    }
}

/// Form of a body. `true` (a problem document) and `false` (no body) are accepted for older files.
#[derive(Clone, Copy)]
struct BodyForm;

impl Kind for BodyForm {
    type Value = DenialBody;

    fn read(&self, node: &Node, path: &str, diagnostics: &mut Diagnostics) -> Option<DenialBody> {
        match &node.value {
            Value::Scalar { text, is_plain: true } if text == "true" => Some(DenialBody::Problem),
            Value::Scalar { text, is_plain: true } if text == "false" => Some(DenialBody::Off),
            _ => OneOf::ANY.read(node, path, diagnostics),
        }
    }

    fn schema(&self) -> Json {
        json!({"enum": ["text", "problem", "off", true, false]})
    }

    fn expected(&self) -> String {
        OneOf::<DenialBody>::ANY.expected()
    }
}
