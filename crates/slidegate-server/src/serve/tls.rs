//! TLS, and who may connect with it.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// Where the certificates are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The server's certificate, and those that lead to its authority.
    pub cert: PathBuf,
    /// Its key.
    pub key: PathBuf,
    /// The authorities for clients' certificates. With them, whoever has none is not let in.
    pub client_ca: Option<PathBuf>,
}

/// Certificates that have been read.
#[derive(Clone)]
pub struct Tls(TlsAcceptor);

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tls")
    }
}

impl Tls {
    /// Reads the certificates, or says which file is of no use and why.
    pub fn load(files: &TlsFiles) -> Result<Self, String> {
        let chain = certificates("tls.cert", &files.cert)?;
        let key =
            PrivateKeyDer::from_pem_file(&files.key).map_err(|error| wrong("tls.key", &files.key, error))?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?;
        let config = match &files.client_ca {
            None => config.with_no_client_auth(),
            Some(file) => {
                let mut roots = RootCertStore::empty();
                for root in certificates("tls.client_ca", file)? {
                    roots.add(root).map_err(|error| wrong("tls.client_ca", file, error))?;
                }
                let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
                let verifier = verifier.build().map_err(|error| wrong("tls.client_ca", file, error))?;
                config.with_client_cert_verifier(verifier)
            }
        };
        let mut config =
            config.with_single_cert(chain, key).map_err(|error| wrong("tls.cert", &files.cert, error))?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Self(TlsAcceptor::from(Arc::new(config))))
    }

    pub(super) async fn accept(
        &self,
        stream: TcpStream,
        patience: Duration,
    ) -> Result<TlsStream<TcpStream>, String> {
        match tokio::time::timeout(patience, self.0.accept(stream)).await {
            Ok(accepted) => accepted.map_err(|error| format!("no TLS: {error}")),
            Err(_) => Err(format!("no TLS within {patience:?}")),
        }
    }
}

fn certificates(field: &str, file: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let read = CertificateDer::pem_file_iter(file).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    match read {
        Ok(read) if read.is_empty() => Err(wrong(field, file, "there is no certificate in it")),
        Ok(read) => Ok(read),
        Err(error) => Err(wrong(field, file, error)),
    }
}

fn wrong(field: &str, file: &Path, why: impl fmt::Display) -> String {
    format!("{field}: {}: {why}", file.display())
}
