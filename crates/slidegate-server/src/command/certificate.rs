//! Who asks, where a server wants to see that.

use std::path::PathBuf;

use rustls::ClientConfig;
use rustls::client::WantsClientCert;
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject;

use crate::serve::certificates;

/// A certificate to show; both files or neither.
#[derive(Debug, clap::Args)]
pub(super) struct ClientCertificate {
    /// A certificate to show to a server that wants one (`tls.client_ca`), and those that lead to its authority; PEM
    #[arg(long, value_name = "FILE", requires = "client_key")]
    client_cert: Option<PathBuf>,

    /// The key of that certificate; PEM
    #[arg(long, value_name = "FILE", requires = "client_cert")]
    client_key: Option<PathBuf>,
}

impl ClientCertificate {
    pub(super) fn is_given(&self) -> bool {
        self.client_cert.is_some()
    }

    /// The rest of how to connect, or which option is of no use and why.
    pub(super) fn complete(
        &self,
        config: rustls::ConfigBuilder<ClientConfig, WantsClientCert>,
    ) -> Result<ClientConfig, String> {
        let (Some(cert), Some(key)) = (&self.client_cert, &self.client_key) else {
            return Ok(config.with_no_client_auth());
        };
        let chain = certificates("--client-cert", cert)
            .map_err(|(option, message)| format!("{option}: {message}"))?;
        let wrong_key = |error: &dyn std::fmt::Display| format!("--client-key: {}: {error}", key.display());
        let private = PrivateKeyDer::from_pem_file(key).map_err(|error| wrong_key(&error))?;
        config.with_client_auth_cert(chain, private).map_err(|error| wrong_key(&error))
    }
}
