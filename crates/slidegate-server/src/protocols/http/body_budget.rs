//! Memory budgets for large request bodies and for responses to batches, shared by all connections.

use std::mem::size_of;

use axum::body::Bytes;
use slidegate::{Quota, QuotaReport};
use tokio::sync::{Semaphore, SemaphorePermit};

use slidegate_config::QuotaSpec;
use slidegate_engine::{Rejection, RejectionKind, SelectedPolicy, Selection};

/// Size of each budget.
const BUDGET_BYTES: usize = 64 << 20;

/// Budget for bodies of more than the maximum size of a single request, so that a client with many connections cannot
/// exhaust the memory.
static BODY_BUDGET: Semaphore = Semaphore::const_new(BUDGET_BYTES);

/// Budget for responses to batches, from before the decisions until the response is sent: a short batch can require a long
/// response, and its client may not read it.
static RESPONSE_BUDGET: Semaphore = Semaphore::const_new(BUDGET_BYTES);

/// Budget for large responses. It is separate because a client that does not read a large response holds its permit; the
/// socket buffers of the kernel take a smaller one.
static LARGE_RESPONSE_BUDGET: Semaphore = Semaphore::const_new(BUDGET_BYTES);

/// Longer responses use [`LARGE_RESPONSE_BUDGET`].
const LARGE_RESPONSE_BYTES: usize = 1 << 20;

/// Longest response that needs no permit.
const SMALL_RESPONSE_BYTES: usize = 4 << 10;

/// Reserved part of a budget, released on drop.
pub(crate) type BudgetPermit = SemaphorePermit<'static>;

/// Reserves `bytes` more for a large body.
pub(super) fn for_body(bytes: usize) -> Option<BudgetPermit> {
    try_acquire(&BODY_BUDGET, bytes)
}

/// Reserves `bytes` for a response to selected requests. A small response needs no permit.
pub(super) fn for_response(
    bytes: usize,
    selections: &[Result<Selection<'_>, Rejection>],
) -> Result<Option<BudgetPermit>, Rejection> {
    if bytes <= SMALL_RESPONSE_BYTES {
        return Ok(None);
    }
    let bytes = bytes + selections.iter().map(pending_bytes).sum::<usize>();
    if bytes > BUDGET_BYTES {
        let detail = format!(
            "the response could need {bytes} bytes; at most {BUDGET_BYTES} are allowed; send smaller batches"
        );
        return Err(Rejection::new(RejectionKind::TooLarge, detail));
    }
    let budget = if bytes > LARGE_RESPONSE_BYTES { &LARGE_RESPONSE_BUDGET } else { &RESPONSE_BUDGET };
    try_acquire(budget, bytes).map(Some).ok_or_else(|| {
        let detail = "too many responses to batches are in progress; try again, or send smaller batches";
        Rejection::new(RejectionKind::Busy, detail)
    })
}

/// Returns the memory that a request and its decision take until the response is written.
fn pending_bytes(selection: &Result<Selection<'_>, Rejection>) -> usize {
    match selection.as_ref().map(|selection| &selection.policy) {
        Ok(SelectedPolicy::Configured(view)) => view.policy().quotas().len() * size_of::<QuotaReport>(),
        Ok(SelectedPolicy::FromRequest(policy, _)) => {
            policy.quotas().len() * (size_of::<QuotaReport>() + size_of::<QuotaSpec>() + size_of::<Quota>())
        }
        // The batch and the selection have a copy each.
        Err(rejection) => 2 * (size_of::<Rejection>() + rejection.detail.len()),
    }
}

fn try_acquire(budget: &'static Semaphore, bytes: usize) -> Option<BudgetPermit> {
    u32::try_from(bytes).ok().and_then(|bytes| budget.try_acquire_many(bytes).ok())
}

/// Attaches a permit to bytes. It is released with the last reference to them.
pub(super) fn with_permit(bytes: Vec<u8>, permit: Option<BudgetPermit>) -> Bytes {
    struct BytesWithPermit {
        bytes: Vec<u8>,
        _permit: BudgetPermit,
    }

    impl AsRef<[u8]> for BytesWithPermit {
        fn as_ref(&self) -> &[u8] {
            &self.bytes
        }
    }

    match permit {
        None => bytes.into(),
        Some(permit) => Bytes::from_owner(BytesWithPermit { bytes, _permit: permit }),
    }
}
