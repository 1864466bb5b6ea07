//! The end of a connection in the same segment as the last bytes before it.

use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;

/// A stream that can keep what is written to itself until there is more to say.
pub(crate) trait Cork {
    /// Sends nothing but full segments from now on, until the stream is shut down, which sends the rest with the end.
    ///
    /// The protocol of Redis has no words for a connection that ends. A client that reads the last answer must find the end
    /// with it, or it sends another command, which is not answered.
    fn cork(&self);
}

impl Cork for TcpStream {
    fn cork(&self) {
        #[cfg(target_os = "linux")]
        if let Err(error) = rustix::net::sockopt::set_tcp_cork(self, true) {
            tracing::debug!(%error, "cannot set TCP_CORK");
        }
    }
}

impl Cork for TlsStream<TcpStream> {
    fn cork(&self) {
        self.get_ref().0.cork();
    }
}
