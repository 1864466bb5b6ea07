//! Shared document: a text that all nodes of a store read and change, such as the changes made by operators.

use std::future::Future;

use crate::error::StoreError;

/// A text and its version.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SharedDocument {
    /// Version of the text; 0 if no document exists. Each write draws a new version at random, so that a version is never
    /// reused, even after the store has lost its data.
    pub version: u64,
    /// Content.
    pub text: String,
}

impl SharedDocument {
    /// Largest version that every store can hold.
    pub const MAX_VERSION: u64 = i64::MAX as u64;

    /// Creates a document with a version of its own.
    pub fn new(text: String) -> Self {
        Self { version: fastrand::u64(1..=Self::MAX_VERSION), text }
    }
}

/// Storage of a [`SharedDocument`] that changes a few times an hour and is read a few times a second.
pub trait SharedDocuments: Send + Sync {
    /// Returns the document unless its version is `known`. `known` is 0 for a node that has read none.
    fn read_document(
        &self,
        known: u64,
    ) -> impl Future<Output = Result<Option<SharedDocument>, StoreError>> + Send;

    /// Replaces the document of version `known`. Returns `false`, and changes nothing, if its version is another one.
    fn write_document(
        &self,
        known: u64,
        document: &SharedDocument,
    ) -> impl Future<Output = Result<bool, StoreError>> + Send;
}
