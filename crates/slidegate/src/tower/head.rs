//! Request without its body.

use std::net::{IpAddr, SocketAddr};

use http::request::Parts;
use http::{Extensions, HeaderMap, Method, Request, Uri};

use crate::address::{ClientAddress, PeerAddress};

/// View of a request without its body, the input of all rules. Borrows everything.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct RequestHead<'a> {
    /// HTTP method.
    pub method: &'a Method,
    /// URI. In a nested axum router it is only the remainder; see [`path`](Self::path).
    pub uri: &'a Uri,
    /// Headers.
    pub headers: &'a HeaderMap,
    /// Extensions that earlier layers have set.
    pub extensions: &'a Extensions,
}

impl<'a> RequestHead<'a> {
    /// Returns the request's path without the query, complete also in nested axum routers (feature `axum`).
    pub fn path(&self) -> &'a str {
        #[cfg(feature = "axum")]
        if let Some(axum::extract::OriginalUri(uri)) = self.extensions.get() {
            return uri.path();
        }
        self.uri.path()
    }

    /// Returns the significant part of the client's address, or `None` if it is unknown. The peer comes from the extensions.
    #[inline]
    pub fn client_address(&self, source: &ClientAddress) -> Option<IpAddr> {
        source.find(peer(self).map(|peer| peer.ip()), self.headers)
    }
}

impl<'a, B> From<&'a Request<B>> for RequestHead<'a> {
    fn from(request: &'a Request<B>) -> Self {
        Self {
            method: request.method(),
            uri: request.uri(),
            headers: request.headers(),
            extensions: request.extensions(),
        }
    }
}

impl<'a> From<&'a Parts> for RequestHead<'a> {
    fn from(parts: &'a Parts) -> Self {
        Self {
            method: &parts.method,
            uri: &parts.uri,
            headers: &parts.headers,
            extensions: &parts.extensions,
        }
    }
}

/// Returns the address of the connected peer, if it is in the extensions.
#[inline]
fn peer(request: &RequestHead<'_>) -> Option<SocketAddr> {
    if let Some(PeerAddress(address)) = request.extensions.get() {
        return Some(*address);
    }
    #[cfg(feature = "axum")]
    if let Some(axum::extract::ConnectInfo(address)) =
        request.extensions.get::<axum::extract::ConnectInfo<SocketAddr>>()
    {
        return Some(*address);
    }
    // axum's extractor also reads this in tests.
    #[cfg(feature = "axum")]
    if let Some(axum::extract::connect_info::MockConnectInfo(address)) =
        request.extensions.get::<axum::extract::connect_info::MockConnectInfo<SocketAddr>>()
    {
        return Some(*address);
    }
    #[cfg(feature = "tonic")]
    if let Some(info) = request.extensions.get::<tonic::transport::server::TcpConnectInfo>() {
        return info.remote_addr();
    }
    None
}

#[cfg(all(test, feature = "axum"))]
mod tests {
    use super::*;

    #[test]
    fn the_peer_is_found_in_every_known_extension() {
        use axum::extract::connect_info::{ConnectInfo, MockConnectInfo};

        let addresses: Vec<SocketAddr> =
            (1..=3).map(|last| SocketAddr::from(([10, 0, 0, last], 80))).collect();
        let mut request = Request::new(());
        let found = |request: &Request<()>| RequestHead::from(request).client_address(&ClientAddress::peer());
        assert_eq!(found(&request), None);
        request.extensions_mut().insert(MockConnectInfo(addresses[0]));
        assert_eq!(found(&request), Some(addresses[0].ip()));
        request.extensions_mut().insert(ConnectInfo(addresses[1]));
        assert_eq!(found(&request), Some(addresses[1].ip()));
        request.extensions_mut().insert(PeerAddress(addresses[2]));
        assert_eq!(found(&request), Some(addresses[2].ip()), "PeerAddress takes precedence");
    }
}
