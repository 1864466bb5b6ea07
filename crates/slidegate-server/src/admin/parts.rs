//! What stands in a path or behind its question mark; what is wrong with it is told as everywhere.

use axum::body::Bytes;
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::request::Parts;
use axum::response::{IntoResponse, Response};
use serde::de::DeserializeOwned;

use crate::http::Problem;
use crate::request::Refusal;

/// What stands in the path.
pub(super) struct InPath<T>(pub(super) T);

/// What stands behind its question mark.
pub(super) struct InQuery<T>(pub(super) T);

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for InPath<T> {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Response> {
        let Path(value) =
            Path::from_request_parts(parts, state).await.map_err(|why| refused("path", &why))?;
        Ok(Self(value))
    }
}

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for InQuery<T> {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Response> {
        let Query(value) =
            Query::from_request_parts(parts, state).await.map_err(|why| refused("query", &why))?;
        Ok(Self(value))
    }
}

/// The body.
pub(super) struct InBody(pub(super) Bytes);

impl<S: Send + Sync> FromRequest<S> for InBody {
    type Rejection = Response;

    async fn from_request(request: Request, state: &S) -> Result<Self, Response> {
        let body = Bytes::from_request(request, state).await;
        body.map(Self).map_err(|why| Problem::new(why.status(), why.body_text()).into_response())
    }
}

fn refused(field: &str, why: &dyn std::fmt::Display) -> Response {
    let refusal = Refusal { field: Some(field.to_owned()), ..Refusal::malformed(why.to_string()) };
    Problem::from(refusal).into_response()
}
