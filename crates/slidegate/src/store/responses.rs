//! Responses of a store.

use std::ops::Deref;

use slidegate_core::Decision;
use smallvec::SmallVec;

use crate::error::StoreError;

/// A store's responses to the operations of one call, in their order.
///
/// A single response is held in place, without an allocation.
#[derive(Clone, Debug, Default)]
pub struct Responses(SmallVec<[Result<Decision, StoreError>; 1]>);

impl Responses {
    /// Returns the response to a call of one operation.
    pub fn into_single(self) -> Result<Decision, StoreError> {
        self.0.into_iter().next().unwrap_or_else(|| Err(missing_response()))
    }
}

impl From<Result<Decision, StoreError>> for Responses {
    #[inline]
    fn from(response: Result<Decision, StoreError>) -> Self {
        Self(SmallVec::from_buf([response]))
    }
}

impl FromIterator<Result<Decision, StoreError>> for Responses {
    fn from_iter<I: IntoIterator<Item = Result<Decision, StoreError>>>(responses: I) -> Self {
        Self(responses.into_iter().collect())
    }
}

impl IntoIterator for Responses {
    type Item = Result<Decision, StoreError>;
    type IntoIter = ResponsesIter;

    fn into_iter(self) -> ResponsesIter {
        ResponsesIter(self.0.into_iter())
    }
}

impl Deref for Responses {
    type Target = [Result<Decision, StoreError>];

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

/// Iterator over [`Responses`].
#[derive(Debug)]
pub struct ResponsesIter(smallvec::IntoIter<[Result<Decision, StoreError>; 1]>);

impl Iterator for ResponsesIter {
    type Item = Result<Decision, StoreError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.0.next()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.0.size_hint()
    }
}

impl ExactSizeIterator for ResponsesIter {}

/// Returns the error of an operation without a response, which is a defect of the store.
pub(crate) fn missing_response() -> StoreError {
    StoreError::permanent("the store returned fewer responses than operations").perhaps_counted()
}
