//! Race of equivalent attempts that start one after another.

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;

use crate::clock::{Clock, SystemClock};
use crate::error::StoreError;

/// Time after which the next attempt starts although no earlier one has ended.
const STAGGER_MS: u64 = 200;

/// Returns the first success. The next attempt starts when one fails or after [`STAGGER_MS`]. If all fail, the error is
/// permanent only if every error is. `empty_message` is the error if there are no attempts.
pub(super) async fn first_success<T, F>(
    attempts: Vec<F>,
    empty_message: &'static str,
) -> Result<T, StoreError>
where
    F: Future<Output = Result<T, StoreError>>,
{
    let clock = SystemClock::default();
    let mut attempts = attempts.into_iter();
    let mut running = FuturesUnordered::new();
    let mut failure: Option<StoreError> = None;
    loop {
        if let Some(attempt) = attempts.next() {
            running.push(attempt);
        }
        if running.is_empty() {
            return Err(failure.unwrap_or_else(|| StoreError::transient(empty_message)));
        }
        tokio::select! {
            Some(result) = running.next() => match result {
                Ok(value) => return Ok(value),
                Err(error) => {
                    if failure.as_ref().is_none_or(|failure| !failure.is_transient() || error.is_transient()) {
                        failure = Some(error);
                    }
                }
            },
            () = clock.sleep(STAGGER_MS), if attempts.len() > 0 => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};
    use std::pin::Pin;

    use super::*;

    type Attempt = Pin<Box<dyn Future<Output = Result<u8, StoreError>>>>;

    async fn first(attempts: &[fn() -> Attempt]) -> Result<u8, StoreError> {
        first_success(attempts.iter().map(|attempt| attempt()).collect(), "no attempts").await
    }

    fn hang() -> Attempt {
        Box::pin(pending())
    }

    fn seven() -> Attempt {
        Box::pin(ready(Ok(7)))
    }

    fn transient() -> Attempt {
        Box::pin(ready(Err(StoreError::transient("transient"))))
    }

    fn permanent() -> Attempt {
        Box::pin(ready(Err(StoreError::permanent("permanent"))))
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_success_wins_in_any_order() {
        assert_eq!(first(&[hang, hang, seven]).await.unwrap(), 7);
        assert_eq!(first(&[permanent, transient, seven]).await.unwrap(), 7);
        for both in [[permanent, transient], [transient, permanent]] {
            let error = first(&both.map(|attempt| attempt as fn() -> Attempt)).await.unwrap_err();
            assert!(error.is_transient(), "{error}");
        }
        assert!(!first(&[permanent, permanent]).await.unwrap_err().is_transient());
        assert_eq!(first(&[]).await.unwrap_err().to_string(), "no attempts");
    }
}
