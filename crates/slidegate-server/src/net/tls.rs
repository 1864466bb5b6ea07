//! TLS, and who may connect with it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use rustls::ServerConfig;
use slidegate_config::{FileProblem, TlsFiles};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

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
