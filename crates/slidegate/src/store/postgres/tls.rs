//! TLS, which is used if the URL requires it or the server offers it.

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::error::StoreError;

/// Creates a connector that trusts the given certificate authority, or those of the system.
pub(super) fn connector(ca_pem: Option<&[u8]>) -> Result<MakeRustlsConnect, StoreError> {
    let mut roots = RootCertStore::empty();
    match ca_pem {
        Some(pem) => {
            for certificate in CertificateDer::pem_slice_iter(pem) {
                let certificate =
                    certificate.map_err(|error| StoreError::permanent(format!("ca: {error}")))?;
                roots.add(certificate).map_err(|error| StoreError::permanent(format!("ca: {error}")))?;
            }
        }
        None => {
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
    }
    let provider = std::sync::Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| StoreError::permanent(format!("postgres: {error}")))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(MakeRustlsConnect::new(config))
}
