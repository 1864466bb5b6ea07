//! What is known of a request before its body.

use http::request::Parts;
use http::{Extensions, HeaderMap, Method, Request, Uri};

/// A request without its body, as it stands: what rules are made of. Nothing is moved or copied to look at it.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct RequestHead<'a> {
    /// The method.
    pub method: &'a Method,
    /// The URI. Within an axum router that is nested in another it is only the rest of it; see [`path`](Self::path).
    pub uri: &'a Uri,
    /// The headers.
    pub headers: &'a HeaderMap,
    /// What earlier layers have found out.
    pub extensions: &'a Extensions,
}

impl<'a> RequestHead<'a> {
    /// The path that the client has asked for, without the query; also where routers of axum are nested (feature `axum`).
    pub fn path(&self) -> &'a str {
        #[cfg(feature = "axum")]
        if let Some(axum::extract::OriginalUri(uri)) = self.extensions.get() {
            return uri.path();
        }
        self.uri.path()
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
