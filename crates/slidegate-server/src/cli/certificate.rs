//! Who asks, where a server wants to see that.

use std::path::PathBuf;

use rustls::ClientConfig;
use rustls::client::WantsClientCert;

use slidegate_config::{FileProblem, certificates, mismatch, private_key};

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
        let said = |(option, message): FileProblem| format!("{option}: {message}");
        let chain = certificates("--client-cert", cert).map_err(said)?;
        let private = private_key("--client-key", key).map_err(said)?;
        config
            .with_client_auth_cert(chain, private)
            .map_err(|error| said(mismatch(("--client-cert", cert), ("--client-key", key), &error)))
    }
}
