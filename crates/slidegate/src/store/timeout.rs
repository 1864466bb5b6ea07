//! Timeout of a call of a store.

use std::future::Future;
use std::time::Duration;

use super::responses::Responses;
use crate::error::StoreError;

/// Returns the responses to `count` operations if they arrive within the budget, and an error for each operation otherwise.
pub(super) async fn within(
    budget: Duration,
    count: usize,
    responses: impl Future<Output = Responses>,
) -> Responses {
    tokio::time::timeout(budget, responses).await.unwrap_or_else(|_| {
        let error = StoreError::lost(format!("no response of the store within {budget:?}")).too_late();
        (0..count).map(|_| Err(error.clone())).collect()
    })
}
