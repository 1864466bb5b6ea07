//! TLS, and who may connect with it.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
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

/// Certificates that have been read. New ones can take their place; connections that there are go on with theirs.
#[derive(Clone)]
pub struct Tls(Arc<Kept>);

struct Kept {
    files: TlsFiles,
    config: ArcSwap<ServerConfig>,
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tls")
    }
}

impl Tls {
    /// Reads the certificates, or says which file is of no use and why.
    pub fn load(files: &TlsFiles) -> Result<Self, String> {
        let config = ArcSwap::from(read(files)?);
        Ok(Self(Arc::new(Kept { files: files.clone(), config })))
    }

    /// Reads them again. If a file is of no use, those from before stay.
    pub(crate) fn renew(&self) -> Result<(), String> {
        self.0.config.store(read(&self.0.files)?);
        Ok(())
    }

    pub(super) async fn accept(
        &self,
        stream: TcpStream,
        patience: Duration,
    ) -> Result<TlsStream<TcpStream>, String> {
        let acceptor = TlsAcceptor::from(self.0.config.load_full());
        match tokio::time::timeout(patience, acceptor.accept(stream)).await {
            Ok(accepted) => accepted.map_err(|error| format!("no TLS: {error}")),
            Err(_) => Err(format!("no TLS within {patience:?}")),
        }
    }
}

fn read(files: &TlsFiles) -> Result<Arc<ServerConfig>, String> {
    let lines = |problems: Vec<FileProblem>| {
        let lines = problems.into_iter().map(|(field, message)| format!("tls.{field}: {message}"));
        lines.collect::<Vec<_>>().join("\n")
    };
    files.read().map(Arc::new).map_err(lines)
}

/// A field, and what is wrong with the file that it names.
pub(crate) type FileProblem = (&'static str, String);

impl TlsFiles {
    /// All of them.
    pub(crate) fn paths(&self) -> impl Iterator<Item = &PathBuf> {
        [&self.cert, &self.key].into_iter().chain(&self.client_ca)
    }

    /// What is served with these files, or all that are of no use.
    pub(crate) fn read(&self) -> Result<ServerConfig, Vec<FileProblem>> {
        let chain = certificates("cert", &self.cert);
        let key = private_key("key", &self.key);
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let clients = self.client_ca.as_deref().map(|file| clients(file, &provider)).transpose();
        let (chain, key, clients) = match (chain, key, clients) {
            (Ok(chain), Ok(key), Ok(clients)) => (chain, key, clients),
            (chain, key, clients) => {
                return Err([chain.err(), key.err(), clients.err()].into_iter().flatten().collect());
            }
        };
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| vec![("cert", error.to_string())])?;
        let config = match clients {
            None => config.with_no_client_auth(),
            Some(verifier) => config.with_client_cert_verifier(verifier),
        };
        let mut config = config
            .with_single_cert(chain, key)
            .map_err(|error| vec![unmatched(("cert", &self.cert), ("key", &self.key), &error)])?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(config)
    }
}

fn clients(file: &Path, provider: &Arc<CryptoProvider>) -> Result<Arc<dyn ClientCertVerifier>, FileProblem> {
    let mut roots = RootCertStore::empty();
    for root in certificates("client_ca", file)? {
        roots.add(root).map_err(|error| wrong("client_ca", file, error))?;
    }
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(provider));
    verifier.build().map_err(|error| wrong("client_ca", file, error))
}

/// The certificates in a file, of which there has to be one.
pub(crate) fn certificates(
    field: &'static str,
    file: &Path,
) -> Result<Vec<CertificateDer<'static>>, FileProblem> {
    let read = CertificateDer::pem_file_iter(file).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    match read {
        Ok(read) if read.is_empty() => Err(wrong(field, file, "there is no certificate in it")),
        Ok(read) => Ok(read),
        Err(error) => Err(wrong(field, file, error)),
    }
}

/// The private key in a file.
pub(crate) fn private_key(field: &'static str, file: &Path) -> Result<PrivateKeyDer<'static>, FileProblem> {
    PrivateKeyDer::from_pem_file(file).map_err(|error| match error {
        pem::Error::NoItemsFound if is_encrypted(file) => wrong(
            field,
            file,
            "it is encrypted; write it without its passphrase: openssl pkey -in FILE -out FILE",
        ),
        pem::Error::NoItemsFound => wrong(field, file, "there is no private key in it"),
        error => wrong(field, file, error),
    })
}

/// Whether there is a key in it that only a passphrase opens.
fn is_encrypted(file: &Path) -> bool {
    std::fs::read_to_string(file).is_ok_and(|text| text.contains("-----BEGIN ENCRYPTED PRIVATE KEY-----"))
}

/// Why a certificate and a key are of no use together.
pub(crate) fn unmatched(
    cert: (&'static str, &Path),
    key: (&'static str, &Path),
    error: &rustls::Error,
) -> FileProblem {
    match error {
        rustls::Error::InconsistentKeys(_) => {
            wrong(key.0, key.1, format_args!("not the key of the certificate in {}", cert.1.display()))
        }
        rustls::Error::InvalidCertificate(_) => wrong(cert.0, cert.1, error),
        error => wrong(key.0, key.1, error),
    }
}

fn wrong(field: &'static str, file: &Path, why: impl fmt::Display) -> FileProblem {
    (field, format!("{}: {why}", file.display()))
}
