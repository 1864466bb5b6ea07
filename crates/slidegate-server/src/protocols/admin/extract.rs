//! Extractors of path, query and body that report errors as problem documents.

use axum::body::Bytes;
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::request::Parts;
use axum::response::{IntoResponse, Response};
use serde::de::DeserializeOwned;
use slidegate_engine::Rejection;

use crate::protocols::http::Problem;

/// Parameters in the path.
pub(super) struct PathParams<T>(pub(super) T);

/// Parameters in the query string.
pub(super) struct QueryParams<T>(pub(super) T);

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for PathParams<T> {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Response> {
        let Path(value) =
            Path::from_request_parts(parts, state).await.map_err(|error| rejection("path", &error))?;
        Ok(Self(value))
    }
}

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for QueryParams<T> {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Response> {
        let Query(value) =
            Query::from_request_parts(parts, state).await.map_err(|error| rejection("query", &error))?;
        Ok(Self(value))
    }
}

/// Body of the request, undecoded.
pub(super) struct RawBody(pub(super) Bytes);

impl<S: Send + Sync> FromRequest<S> for RawBody {
    type Rejection = Response;

    async fn from_request(request: Request, state: &S) -> Result<Self, Response> {
        let body = Bytes::from_request(request, state).await;
        body.map(Self).map_err(|error| Problem::new(error.status(), error.body_text()).into_response())
    }
}

fn rejection(field: &str, error: &dyn std::fmt::Display) -> Response {
    let rejection = Rejection { field: Some(field.to_owned()), ..Rejection::malformed(error.to_string()) };
    Problem::from(rejection).into_response()
}
