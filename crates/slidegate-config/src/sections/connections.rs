//! Sections `limits`, `tls` and `log`.

use std::time::Duration;

use crate::fields::containers::Mapping;
use crate::fields::diagnostics::Diagnostics;
use crate::fields::field::{Field, Fields};
use crate::fields::scalars::{Boolean, FsPath, Integer, Time};
use crate::tls::{TlsFiles, certificates};

/// Limits of connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum number of open connections. A further connection is closed at once.
    pub connections: usize,
    /// Timeout for the head of a connection's first or next request, for a client that does not read a response, and for
    /// an HTTP/2 connection without a request.
    pub head_timeout: Duration,
    /// Timeout for the body of a request.
    pub body_timeout: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 16_384,
            head_timeout: Duration::from_secs(75),
            body_timeout: Duration::from_secs(10),
        }
    }
}

/// Settings of the log of denials.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ViolationLog {
    /// Maximum number of lines per second. The next line states how many were left out.
    pub per_second: u32,
    /// Whether the log contains keys in plain text instead of their hashes.
    pub plain_keys: bool,
}

impl Default for ViolationLog {
    fn default() -> Self {
        Self { per_second: 10, plain_keys: false }
    }
}

const CONNECTIONS: Field<Integer> = Field::new(
    "connections",
    Integer { min: 1, max: 1_000_000 },
    "Maximum number of open connections; a further connection is closed at once.",
)
.with_default("16384");
const HEAD_TIMEOUT: Field<Time> = Field::new(
    "head_timeout",
    Time::UP_TO_AN_HOUR,
    "Timeout for the head of a connection's first or next request; then the connection is closed.",
)
.with_default("75s");
const BODY_TIMEOUT: Field<Time> = Field::new(
    "body_timeout",
    Time::UP_TO_AN_HOUR,
    "Timeout for the body of a request; then the response is 408.",
)
.with_default("10s");

pub(crate) const LIMITS: Mapping<Limits> = Mapping {
    fields: &[&CONNECTIONS, &HEAD_TIMEOUT, &BODY_TIMEOUT],
    one_of: &[],
    read: |fields, diagnostics| Some(limits(fields, diagnostics)),
};

fn limits(fields: &Fields<'_>, diagnostics: &mut Diagnostics) -> Limits {
    let defaults = Limits::default();
    let connections = fields.get(&CONNECTIONS, diagnostics).and_then(|number| usize::try_from(number).ok());
    Limits {
        connections: connections.unwrap_or(defaults.connections),
        head_timeout: fields.get(&HEAD_TIMEOUT, diagnostics).unwrap_or(defaults.head_timeout),
        body_timeout: fields.get(&BODY_TIMEOUT, diagnostics).unwrap_or(defaults.body_timeout),
    }
}

const CERT: Field<FsPath> =
    Field::new("cert", FsPath::FILE, "Certificate of the server with its intermediate certificates, as PEM.")
        .required();
const KEY: Field<FsPath> =
    Field::new("key", FsPath::FILE, "Private key of the certificate, as PEM.").required();
const CLIENT_CA: Field<FsPath> = Field::new(
    "client_ca",
    FsPath::FILE,
    "CA certificates for client certificates, as PEM; with them, a client needs a certificate that they sign.",
)
.with_described_default("clients need no certificate");

pub(crate) const TLS: Mapping<TlsFiles> =
    Mapping { fields: &[&CERT, &KEY, &CLIENT_CA], one_of: &[], read: tls };

fn tls(fields: &Fields<'_>, diagnostics: &mut Diagnostics) -> Option<TlsFiles> {
    let (cert, key) = (fields.get(&CERT, diagnostics), fields.get(&KEY, diagnostics));
    let client_ca = fields.get(&CLIENT_CA, diagnostics);
    let files = match (cert, key) {
        (Some(cert), Some(key)) => Ok(TlsFiles { cert, key, client_ca }),
        // Each given file is still checked by itself.
        (cert, _) => Err([("cert", cert), ("client_ca", client_ca)]),
    };
    if diagnostics.follows_references {
        let problems = match &files {
            Ok(files) => files.read().err().unwrap_or_default(),
            Err(given) => {
                given.iter().filter_map(|(field, file)| certificates(field, file.as_ref()?).err()).collect()
            }
        };
        for (field, message) in problems {
            diagnostics.report(fields.line_of(field), fields.path_of(field), message);
        }
    }
    files.ok()
}

const VIOLATIONS: Field<Integer> = Field::new(
    "violations",
    Integer { min: 0, max: 10_000 },
    "Maximum number of denials that are logged per second; the metrics count all denials.",
)
.with_default("10");
const PLAIN_KEYS: Field<Boolean> =
    Field::new("plain_keys", Boolean, "Whether the log contains keys in plain text instead of their hashes.")
        .with_default("false");

pub(crate) const LOG: Mapping<ViolationLog> = Mapping {
    fields: &[&VIOLATIONS, &PLAIN_KEYS],
    one_of: &[],
    read: |fields, diagnostics| Some(log(fields, diagnostics)),
};

fn log(fields: &Fields<'_>, diagnostics: &mut Diagnostics) -> ViolationLog {
    let defaults = ViolationLog::default();
    let violations = fields.get(&VIOLATIONS, diagnostics).and_then(|number| u32::try_from(number).ok());
    ViolationLog {
        per_second: violations.unwrap_or(defaults.per_second),
        plain_keys: fields.get(&PLAIN_KEYS, diagnostics).unwrap_or(defaults.plain_keys),
    }
}
