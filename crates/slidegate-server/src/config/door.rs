//! What the file says about connections, and about the log.

use super::containers::Mapping;
use super::field::{Field, Fields};
use super::kinds::{Flag, PathTo, Time, Whole};
use super::review::Review;
use crate::serve::{Limits, TlsFiles, certificates};
use crate::violations::ViolationLog;

const CONNECTIONS: Field<Whole> = Field::new(
    "connections",
    Whole { min: 1, max: 1_000_000 },
    "How many connections there may be; one more is closed at once.",
)
.usual("16384");
const HEAD_TIMEOUT: Field<Time> = Field::new(
    "head_timeout",
    Time::UP_TO_AN_HOUR,
    "How long the head of a connection's first or next request may take; then it is closed.",
)
.usual("75s");
const BODY_TIMEOUT: Field<Time> = Field::new(
    "body_timeout",
    Time::UP_TO_AN_HOUR,
    "How long the body of a request may take; then it is answered with 408.",
)
.usual("10s");

pub(super) const LIMITS: Mapping<Limits> = Mapping {
    fields: &[&CONNECTIONS, &HEAD_TIMEOUT, &BODY_TIMEOUT],
    one_of: &[],
    read: |fields, review| Some(limits(fields, review)),
};

fn limits(fields: &Fields<'_>, review: &mut Review) -> Limits {
    let usual = Limits::default();
    let connections = fields.get(&CONNECTIONS, review).and_then(|number| usize::try_from(number).ok());
    Limits {
        connections: connections.unwrap_or(usual.connections),
        head_timeout: fields.get(&HEAD_TIMEOUT, review).unwrap_or(usual.head_timeout),
        body_timeout: fields.get(&BODY_TIMEOUT, review).unwrap_or(usual.body_timeout),
    }
}

const CERT: Field<PathTo> = Field::new(
    "cert",
    PathTo::FILE,
    "The server's certificate, and those that lead to its authority, as PEM.",
)
.required();
const KEY: Field<PathTo> = Field::new("key", PathTo::FILE, "The key of the certificate, as PEM.").required();
const CLIENT_CA: Field<PathTo> = Field::new(
    "client_ca",
    PathTo::FILE,
    "The authorities for clients' certificates; with it, whoever has none is not let in.",
)
.otherwise("none is asked for");

pub(super) const TLS: Mapping<TlsFiles> =
    Mapping { fields: &[&CERT, &KEY, &CLIENT_CA], one_of: &[], read: tls };

fn tls(fields: &Fields<'_>, review: &mut Review) -> Option<TlsFiles> {
    let (cert, key) = (fields.get(&CERT, review), fields.get(&KEY, review));
    let client_ca = fields.get(&CLIENT_CA, review);
    let files = match (cert, key) {
        (Some(cert), Some(key)) => Ok(TlsFiles { cert, key, client_ca }),
        // What can be said of each by itself.
        (cert, _) => Err([("cert", cert), ("client_ca", client_ca)]),
    };
    if review.looks_around {
        let problems = match &files {
            Ok(files) => files.read().err().unwrap_or_default(),
            Err(some) => {
                some.iter().filter_map(|(field, file)| certificates(field, file.as_ref()?).err()).collect()
            }
        };
        for (field, message) in problems {
            review.refuse(fields.line_of(field), fields.path_of(field), message);
        }
    }
    files.ok()
}

const VIOLATIONS: Field<Whole> = Field::new(
    "violations",
    Whole { min: 0, max: 10_000 },
    "How many denials are written to the log in a second at the most; the metrics have them all.",
)
.usual("10");
const PLAIN_KEYS: Field<Flag> =
    Field::new("plain_keys", Flag, "Whether keys are written as they are, and not as hashes.").usual("false");

pub(super) const LOG: Mapping<ViolationLog> = Mapping {
    fields: &[&VIOLATIONS, &PLAIN_KEYS],
    one_of: &[],
    read: |fields, review| Some(log(fields, review)),
};

fn log(fields: &Fields<'_>, review: &mut Review) -> ViolationLog {
    let usual = ViolationLog::default();
    let violations = fields.get(&VIOLATIONS, review).and_then(|number| u32::try_from(number).ok());
    ViolationLog {
        per_second: violations.unwrap_or(usual.per_second),
        plain_keys: fields.get(&PLAIN_KEYS, review).unwrap_or(usual.plain_keys),
    }
}
