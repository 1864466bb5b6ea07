//! Whom to trust.

use std::path::Path;
use std::sync::Arc;

use rustls::{ClientConfig, RootCertStore};
use tokio_rustls::TlsConnector;

use crate::command::certificate::ClientCertificate;
use crate::command::from_environment;
use crate::serve::certificates;

/// Trusts whom the system trusts, or whoever is in the file that `SSL_CERT_FILE` names.
pub(super) fn connector(certificate: &ClientCertificate) -> Result<TlsConnector, String> {
    // Whoever names a file means that one, and should hear if it is of no use.
    if let Some(file) = from_environment("SSL_CERT_FILE") {
        certificates("SSL_CERT_FILE", Path::new(&file))
            .map_err(|(name, message)| format!("{name}: {message}"))?;
    }
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_root_certificates(roots);
    Ok(TlsConnector::from(Arc::new(certificate.complete(config)?)))
}
