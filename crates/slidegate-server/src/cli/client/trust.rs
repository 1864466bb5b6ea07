//! Trusted certificate authorities.

use std::sync::Arc;

use rustls::{ClientConfig, RootCertStore};
use tokio_rustls::TlsConnector;

use crate::cli::certificate::ClientCertificate;

/// Returns a TLS connector that trusts the authorities of the file `SSL_CERT_FILE`, or else those of the system.
pub(super) fn connector(certificate: &ClientCertificate) -> Result<TlsConnector, String> {
    let found = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(found.certs);
    if roots.is_empty() {
        return Err(no_authority(&found.errors));
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_root_certificates(roots);
    Ok(TlsConnector::from(Arc::new(certificate.complete(config)?)))
}

fn no_authority(errors: &[rustls_native_certs::Error]) -> String {
    let Some(file) = std::env::var_os("SSL_CERT_FILE") else {
        return "the system has no trusted authorities; set SSL_CERT_FILE to a file with one".to_owned();
    };
    let errors: Vec<_> = errors.iter().map(ToString::to_string).collect();
    let reason =
        if errors.is_empty() { "there is no certificate in it".to_owned() } else { errors.join("; ") };
    format!("SSL_CERT_FILE: {}: {reason}", file.display())
}
