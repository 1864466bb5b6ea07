//! Request without its body.

use http::request::Parts;
use http::{Extensions, HeaderMap, Method, Request, Uri};

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
