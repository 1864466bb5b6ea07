//! Error messages of failed connections, with hints.

use std::error::Error;
use std::io;
use std::iter::successors;

use rustls::{AlertDescription, CertificateError};

type AnyError = dyn Error + 'static;

/// Describes an error and its probable cause: the wrong port, a missing TLS setting or a certificate.
pub(super) fn describe(is_tls: bool, error: &AnyError) -> String {
    let tls_error = if is_tls { chain(error).find_map(tls_error) } else { None };
    let hint = match &tls_error {
        Some(rustls::Error::InvalidCertificate(error)) => return describe_certificate_error(error),
        Some(rustls::Error::InvalidMessage(_)) => {
            "; is this the port for HTTP? If the server has no TLS, write http://"
        }
        Some(rustls::Error::AlertReceived(AlertDescription::CertificateRequired)) => {
            "; the server requires a certificate: --client-cert and --client-key"
        }
        None if !is_tls && chain(error).any(is_http_parse_error) => {
            "; is this the port for HTTP? If the server has TLS, write https://"
        }
        _ => "",
    };
    format!("{}{hint}", with_sources(error))
}

fn describe_certificate_error(error: &CertificateError) -> String {
    let text = match error {
        // The other errors occur if a trusted authority has the same name, for example after its key was replaced.
        CertificateError::UnknownIssuer
        | CertificateError::BadSignature
        | CertificateError::UnsupportedSignatureAlgorithmContext { .. }
        | CertificateError::UnsupportedSignatureAlgorithmForPublicKeyContext { .. } => {
            "no trusted authority has signed the server's certificate; set SSL_CERT_FILE to the file of its authority"
        }
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            "the server's certificate has expired"
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            "the server's certificate is not valid yet; check the clock of this machine"
        }
        // The type of this error is not public.
        CertificateError::Other(other) if other.to_string().contains("CaUsedAsEndEntity") => {
            "the server's certificate is that of an authority; let the authority sign a certificate for the server, or \
             create a certificate without CA:TRUE"
        }
        other => return format!("the server's certificate is not accepted: {other}"),
    };
    text.to_owned()
}

/// Returns the error and its sources.
fn chain(error: &AnyError) -> impl Iterator<Item = &AnyError> {
    successors(Some(error), |error| (**error).source())
}

fn is_http_parse_error(error: &AnyError) -> bool {
    error.downcast_ref::<hyper::Error>().is_some_and(hyper::Error::is_parse)
}

fn tls_error(error: &AnyError) -> Option<rustls::Error> {
    // The source of an I/O error skips the error inside it.
    let in_io_error = |error: &io::Error| error.get_ref().and_then(|inner| inner.downcast_ref()).cloned();
    error.downcast_ref().cloned().or_else(|| error.downcast_ref().and_then(in_io_error))
}

/// Joins the messages of an error and of its sources.
fn with_sources(error: &AnyError) -> String {
    chain(error).skip(1).fold(error.to_string(), |text, source| {
        let message = source.to_string();
        if text.ends_with(&message) { text } else { format!("{text}: {message}") }
    })
}
