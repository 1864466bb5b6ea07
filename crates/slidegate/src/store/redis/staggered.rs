//! Asking several who can all say the same, until one does.

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;

use crate::clock::{Clock, SystemClock};
use crate::error::StoreError;

/// After so long without an answer the next one is asked as well.
const STAGGER_MS: u64 = 200;

/// The first answer of those who are asked one after the other, as soon as the one before has failed or is slow. A failure is
/// permanent only if all are.
pub(super) async fn first_of<T, F>(questions: Vec<F>, nobody: &'static str) -> Result<T, StoreError>
where
    F: Future<Output = Result<T, StoreError>>,
{
    let clock = SystemClock::default();
    let mut questions = questions.into_iter();
    let mut asked = FuturesUnordered::new();
    let mut failure: Option<StoreError> = None;
    loop {
        if let Some(question) = questions.next() {
            asked.push(question);
        }
        if asked.is_empty() {
            return Err(failure.unwrap_or_else(|| StoreError::transient(nobody)));
        }
        tokio::select! {
            Some(answer) = asked.next() => match answer {
                Ok(answer) => return Ok(answer),
                Err(error) => {
                    if failure.as_ref().is_none_or(|failure| !failure.is_transient() || error.is_transient()) {
                        failure = Some(error);
                    }
                }
            },
            () = clock.sleep(STAGGER_MS), if questions.len() > 0 => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};
    use std::pin::Pin;

    use super::*;

    type Answer = Pin<Box<dyn Future<Output = Result<u8, StoreError>>>>;

    async fn first(answers: &[fn() -> Answer]) -> Result<u8, StoreError> {
        first_of(answers.iter().map(|answer| answer()).collect(), "nobody").await
    }

    fn silence() -> Answer {
        Box::pin(pending())
    }

    fn seven() -> Answer {
        Box::pin(ready(Ok(7)))
    }

    fn away() -> Answer {
        Box::pin(ready(Err(StoreError::transient("away"))))
    }

    fn refused() -> Answer {
        Box::pin(ready(Err(StoreError::permanent("refused"))))
    }

    #[tokio::test(start_paused = true)]
    async fn silence_holds_nobody_up_and_order_makes_no_difference() {
        assert_eq!(first(&[silence, silence, seven]).await.unwrap(), 7);
        assert_eq!(first(&[refused, away, seven]).await.unwrap(), 7);
        for both in [[refused, away], [away, refused]] {
            let error = first(&both.map(|answer| answer as fn() -> Answer)).await.unwrap_err();
            assert!(error.is_transient(), "{error}");
        }
        assert!(!first(&[refused, refused]).await.unwrap_err().is_transient());
        assert_eq!(first(&[]).await.unwrap_err().to_string(), "nobody");
    }
}
