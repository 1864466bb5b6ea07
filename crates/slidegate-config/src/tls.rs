//! Certificate files of the listeners and of the command line.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls::{RootCertStore, ServerConfig};

/// Files of the server's certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// Certificate of the server with its intermediate certificates.
    pub cert: PathBuf,
    /// Private key of the certificate.
    pub key: PathBuf,
    /// CA certificates for client certificates. With them, a client needs a certificate that they sign.
    pub client_ca: Option<PathBuf>,
}

/// Field or option that names a file, and the problem of the file.
pub type FileProblem = (&'static str, String);

impl TlsFiles {
    /// Returns the paths of all files.
    pub fn paths(&self) -> impl Iterator<Item = &PathBuf> {
        [&self.cert, &self.key].into_iter().chain(&self.client_ca)
    }

    /// Reads the files, or returns all their problems.
    pub fn read(&self) -> Result<ServerConfig, Vec<FileProblem>> {
        let chain = certificates("cert", &self.cert);
        let key = private_key("key", &self.key);
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier = self.client_ca.as_deref().map(|file| client_verifier(file, &provider)).transpose();
        let (chain, key, verifier) = match (chain, key, verifier) {
            (Ok(chain), Ok(key), Ok(verifier)) => (chain, key, verifier),
            (chain, key, verifier) => {
                return Err([chain.err(), key.err(), verifier.err()].into_iter().flatten().collect());
            }
        };
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| vec![("cert", error.to_string())])?;
        let config = match verifier {
            None => config.with_no_client_auth(),
            Some(verifier) => config.with_client_cert_verifier(verifier),
        };
        let mut config = config
            .with_single_cert(chain, key)
            .map_err(|error| vec![mismatch(("cert", &self.cert), ("key", &self.key), &error)])?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(config)
    }
}

fn client_verifier(
    file: &Path,
    provider: &Arc<CryptoProvider>,
) -> Result<Arc<dyn ClientCertVerifier>, FileProblem> {
    let mut roots = RootCertStore::empty();
    for root in certificates("client_ca", file)? {
        roots.add(root).map_err(|error| problem("client_ca", file, error))?;
    }
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(provider));
    verifier.build().map_err(|error| problem("client_ca", file, error))
}

/// Reads the certificates of a file, at least one.
pub fn certificates(field: &'static str, file: &Path) -> Result<Vec<CertificateDer<'static>>, FileProblem> {
    let read = CertificateDer::pem_file_iter(file).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    match read {
        Ok(read) if read.is_empty() => Err(problem(field, file, "the file contains no certificate")),
        Ok(read) => Ok(read),
        Err(error) => Err(problem(field, file, error)),
    }
}

/// Reads the private key of a file.
pub fn private_key(field: &'static str, file: &Path) -> Result<PrivateKeyDer<'static>, FileProblem> {
    PrivateKeyDer::from_pem_file(file).map_err(|error| match error {
        pem::Error::NoItemsFound if is_encrypted(file) => problem(
            field,
            file,
            "the key is encrypted; write it without its passphrase: openssl pkey -in FILE -out FILE",
        ),
        pem::Error::NoItemsFound => problem(field, file, "the file contains no private key"),
        error => problem(field, file, error),
    })
}

/// Returns whether the file contains a private key that needs a passphrase.
fn is_encrypted(file: &Path) -> bool {
    std::fs::read_to_string(file).is_ok_and(|text| text.contains("-----BEGIN ENCRYPTED PRIVATE KEY-----"))
}

/// Describes why a certificate and a key cannot be used together.
pub fn mismatch(
    cert: (&'static str, &Path),
    key: (&'static str, &Path),
    error: &rustls::Error,
) -> FileProblem {
    match error {
        rustls::Error::InconsistentKeys(_) => {
            problem(key.0, key.1, format_args!("not the key of the certificate in {}", cert.1.display()))
        }
        rustls::Error::InvalidCertificate(_) => problem(cert.0, cert.1, error),
        error => problem(key.0, key.1, error),
    }
}

fn problem(field: &'static str, file: &Path, message: impl fmt::Display) -> FileProblem {
    (field, format!("{}: {message}", file.display()))
}
