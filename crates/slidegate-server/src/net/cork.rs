//! Delays small segments, so that the last response and the end of the connection leave in one segment.

use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;

/// A stream that can hold back partial segments.
pub(crate) trait Cork {
    /// Holds back partial segments until the shutdown of the stream, which sends the rest together with the end.
    ///
    /// RESP has no message that announces the end of a connection. A client that reads the last reply must see the end at
    /// the same time; otherwise it sends another command, which gets no reply.
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
