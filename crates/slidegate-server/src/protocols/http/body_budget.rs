//! What all who ask may take of the memory together.

use std::mem::size_of;

use axum::body::Bytes;
use slidegate::{Quota, QuotaReport};
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::app::SelectedPolicy;
use crate::request::{Rejection, RejectionKind};
use slidegate_config::QuotaSpec;

/// Bodies that are larger than a single one may be. Whoever has many connections could fill any memory with them otherwise.
static OF_BODIES: Semaphore = Semaphore::const_new(64 << 20);
/// Answers to batches, from before they are decided until they have left: a few bytes may ask for very many, and nobody has
/// to read them. Large ones have room of their own, so that they take none from others: those who do not read a smaller one
/// have it kept by their system, and not here.
static OF_ANSWERS: Semaphore = Semaphore::const_new(MAX_BYTES);
static OF_LARGE_ANSWERS: Semaphore = Semaphore::const_new(MAX_BYTES);
const MAX_BYTES: usize = 64 << 20;
/// One of more than this is large.
const LARGE_BYTES: usize = 1 << 20;
/// An answer of no more than this is one that any connection may have.
const SMALL_BYTES: usize = 4 << 10;

/// Some of it, which is given back when this goes.
pub(crate) type BudgetPermit = SemaphorePermit<'static>;

/// Reserves `bytes` more for a large body.
pub(super) fn for_body(bytes: usize) -> Option<BudgetPermit> {
    take(&OF_BODIES, bytes)
}

/// Reserves `bytes` for a response under the `chosen` policies. A small response needs no permit.
pub(super) fn for_answer(
    bytes: usize,
    chosen: &[Result<SelectedPolicy, Rejection>],
) -> Result<Option<BudgetPermit>, Rejection> {
    if bytes <= SMALL_BYTES {
        return Ok(None);
    }
    let bytes = bytes + chosen.iter().map(before_it_is_written).sum::<usize>();
    if bytes > MAX_BYTES {
        let detail =
            format!("the answer might have {bytes} bytes, more than {MAX_BYTES}; send smaller batches");
        return Err(Rejection::new(RejectionKind::TooLarge, detail));
    }
    let from = if bytes > LARGE_BYTES { &OF_LARGE_ANSWERS } else { &OF_ANSWERS };
    take(from, bytes).map(Some).ok_or_else(|| {
        let detail =
            "there are too many answers to batches under way at the moment; try again, or send smaller batches";
        Rejection::new(RejectionKind::Busy, detail)
    })
}

/// What is kept of a request and its decision until there is an answer.
fn before_it_is_written(chosen: &Result<SelectedPolicy, Rejection>) -> usize {
    match chosen {
        Ok(SelectedPolicy::Configured(named)) => named.policy().quotas().len() * size_of::<QuotaReport>(),
        Ok(SelectedPolicy::FromRequest(policy, _)) => {
            policy.quotas().len() * (size_of::<QuotaReport>() + size_of::<QuotaSpec>() + size_of::<Quota>())
        }
        // There are two of them.
        Err(rejection) => 2 * (size_of::<Rejection>() + rejection.detail.len()),
    }
}

fn take(from: &'static Semaphore, bytes: usize) -> Option<BudgetPermit> {
    u32::try_from(bytes).ok().and_then(|bytes| from.try_acquire_many(bytes).ok())
}

/// Bytes that keep their room until nobody has any of them.
pub(super) fn kept(bytes: Vec<u8>, room: Option<BudgetPermit>) -> Bytes {
    struct Kept {
        bytes: Vec<u8>,
        _room: BudgetPermit,
    }

    impl AsRef<[u8]> for Kept {
        fn as_ref(&self) -> &[u8] {
            &self.bytes
        }
    }

    match room {
        None => bytes.into(),
        Some(room) => Bytes::from_owner(Kept { bytes, _room: room }),
    }
}
