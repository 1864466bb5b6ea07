//! Why a server could not be asked, and what may be done about it.

use std::error::Error;
use std::io;
use std::iter::successors;

use rustls::{AlertDescription, CertificateError};

type AnyError = dyn Error + 'static;

/// An error in words, and what to try: it may be another port, another language, or somebody whom nobody vouches for.
pub(super) fn told(is_tls: bool, error: &AnyError) -> String {
    let of_tls = if is_tls { chain(error).find_map(of_tls) } else { None };
    let hint = match &of_tls {
        Some(rustls::Error::InvalidCertificate(wrong)) => return of_certificate(wrong),
        Some(rustls::Error::InvalidMessage(_)) => {
            "; is it the port for HTTP? If it speaks without TLS, write http://"
        }
        Some(rustls::Error::AlertReceived(AlertDescription::CertificateRequired)) => {
            "; it wants to see a certificate: --client-cert and --client-key"
        }
        None if !is_tls && chain(error).any(is_no_http) => {
            "; is it the port for HTTP? If it speaks TLS, write https://"
        }
        _ => "",
    };
    format!("{}{hint}", whole(error))
}

fn of_certificate(wrong: &CertificateError) -> String {
    let words = match wrong {
        // The others if one that is trusted has the same name, such as an authority that was made anew.
        CertificateError::UnknownIssuer
        | CertificateError::BadSignature
        | CertificateError::UnsupportedSignatureAlgorithmContext { .. }
        | CertificateError::UnsupportedSignatureAlgorithmForPublicKeyContext { .. } => {
            "nobody whom this machine trusts vouches for its certificate; name its authority by SSL_CERT_FILE"
        }
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => "its certificate has expired",
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            "its certificate is not valid yet; is the clock of this machine right?"
        }
        // The type behind this one has no name here.
        CertificateError::Other(other) if other.to_string().contains("CaUsedAsEndEntity") => {
            "its certificate is that of an authority, which no server may show; have that authority sign another one, \
             or make one that is not CA:TRUE"
        }
        other => return format!("its certificate is not accepted: {other}"),
    };
    words.to_owned()
}

fn chain(error: &AnyError) -> impl Iterator<Item = &AnyError> {
    successors(Some(error), |error| (**error).source())
}

fn is_no_http(error: &AnyError) -> bool {
    error.downcast_ref::<hyper::Error>().is_some_and(hyper::Error::is_parse)
}

fn of_tls(error: &AnyError) -> Option<rustls::Error> {
    // An I/O error shows what it holds only when it is asked for.
    let of_io = |error: &io::Error| error.get_ref().and_then(|held| held.downcast_ref()).cloned();
    error.downcast_ref().cloned().or_else(|| error.downcast_ref().and_then(of_io))
}

/// An error with what is behind it: that a connection failed does not say why.
fn whole(error: &AnyError) -> String {
    chain(error).skip(1).fold(error.to_string(), |said, error| {
        let more = error.to_string();
        if said.ends_with(&more) { said } else { format!("{said}: {more}") }
    })
}
