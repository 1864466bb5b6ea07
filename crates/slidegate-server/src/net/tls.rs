//! TLS of the listeners, with client certificates.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use rustls::ServerConfig;
use slidegate_config::{FileProblem, TlsFiles};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// Loaded certificates. A reload applies to new connections only.
#[derive(Clone)]
pub struct Tls(Arc<TlsState>);

struct TlsState {
    files: TlsFiles,
    config: ArcSwap<ServerConfig>,
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tls")
    }
}

impl Tls {
    /// Loads the certificates. The error names each unusable file and the reason.
    pub fn load(files: &TlsFiles) -> Result<Self, String> {
        let config = ArcSwap::from(read(files)?);
        Ok(Self(Arc::new(TlsState { files: files.clone(), config })))
    }

    /// Loads the files again. If one of them is unusable, the previous certificates stay in use.
    pub(crate) fn reload(&self) -> Result<(), String> {
        self.0.config.store(read(&self.0.files)?);
        Ok(())
    }

    pub(crate) async fn accept(
        &self,
        stream: TcpStream,
        timeout: Duration,
    ) -> Result<TlsStream<TcpStream>, String> {
        let acceptor = TlsAcceptor::from(self.0.config.load_full());
        match tokio::time::timeout(timeout, acceptor.accept(stream)).await {
            Ok(accepted) => accepted.map_err(|error| format!("TLS handshake failed: {error}")),
            Err(_) => Err(format!("TLS handshake not complete within {timeout:?}")),
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
