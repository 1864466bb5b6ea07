//! Client certificates for servers that require them.

use std::path::PathBuf;

use rustls::ClientConfig;
use rustls::client::WantsClientCert;

use slidegate_config::{FileProblem, certificates, mismatch, private_key};

/// Files of the client certificate: both or neither.
#[derive(Debug, clap::Args)]
pub(super) struct ClientCertificate {
    /// Client certificate for a server with `tls.client_ca`, followed by its intermediate certificates; PEM
    #[arg(long, value_name = "FILE", requires = "client_key")]
    client_cert: Option<PathBuf>,

    /// Private key of the client certificate; PEM
    #[arg(long, value_name = "FILE", requires = "client_cert")]
    client_key: Option<PathBuf>,
}

impl ClientCertificate {
    pub(super) fn is_given(&self) -> bool {
        self.client_cert.is_some()
    }

    /// Completes a TLS configuration with the certificate, if one is given. An error names the option of the invalid file.
    pub(super) fn complete(
        &self,
        config: rustls::ConfigBuilder<ClientConfig, WantsClientCert>,
    ) -> Result<ClientConfig, String> {
        let (Some(cert), Some(key)) = (&self.client_cert, &self.client_key) else {
            return Ok(config.with_no_client_auth());
        };
        let describe = |(option, message): FileProblem| format!("{option}: {message}");
        let chain = certificates("--client-cert", cert).map_err(describe)?;
        let private = private_key("--client-key", key).map_err(describe)?;
        config
            .with_client_auth_cert(chain, private)
            .map_err(|error| describe(mismatch(("--client-cert", cert), ("--client-key", key), &error)))
    }
}
