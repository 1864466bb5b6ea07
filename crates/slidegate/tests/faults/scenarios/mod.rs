//! Scenarios that every remote store passes.

mod batches;
mod budgets;
mod connections;
mod queue;
mod replies;

pub(crate) use batches::{
    a_batch_takes_one_round_trip, a_batch_that_is_cut_keeps_its_received_responses,
    a_large_batch_causes_no_rejections,
};
pub(crate) use budgets::{
    a_call_sets_one_timer, a_stopped_server_costs_each_caller_at_most_the_budget,
    each_call_ends_within_its_budget,
};
pub(crate) use connections::{
    a_connection_attempt_outlasts_the_budget,
    a_dead_server_fails_requests_at_once_and_is_found_after_its_restart,
    a_silent_server_does_not_block_callers, connecting_to_a_closed_port_fails_with_the_address,
    connecting_to_a_stopped_server_times_out, the_store_reconnects_before_the_next_request,
};
pub(crate) use queue::{
    a_cancelled_request_does_not_affect_the_others, a_full_queue_rejects_requests_at_once,
    a_panicked_task_restarts_and_fails_its_requests_at_once,
    a_request_that_times_out_in_the_queue_is_never_sent,
};
pub(crate) use replies::a_cut_reply_is_an_error_and_the_request_is_not_resent;

use slidegate::store::{Store, StoreLimiter};
use slidegate::{Check, Clock, Decision, Policy, StoreError, SystemClock};

/// Runs all scenarios with a backend.
macro_rules! suite {
    ($backend:ty) => {
        $crate::scenarios::suite!(
            $backend,
            a_batch_takes_one_round_trip,
            a_batch_that_is_cut_keeps_its_received_responses,
            a_call_sets_one_timer,
            a_cancelled_request_does_not_affect_the_others,
            a_connection_attempt_outlasts_the_budget,
            a_cut_reply_is_an_error_and_the_request_is_not_resent,
            a_dead_server_fails_requests_at_once_and_is_found_after_its_restart,
            a_full_queue_rejects_requests_at_once,
            a_large_batch_causes_no_rejections,
            a_panicked_task_restarts_and_fails_its_requests_at_once,
            a_request_that_times_out_in_the_queue_is_never_sent,
            a_silent_server_does_not_block_callers,
            a_stopped_server_costs_each_caller_at_most_the_budget,
            connecting_to_a_closed_port_fails_with_the_address,
            connecting_to_a_stopped_server_times_out,
            each_call_ends_within_its_budget,
            the_store_reconnects_before_the_next_request
        );
    };
    ($backend:ty, $($name:ident),+) => {
        $(
            #[tokio::test]
            async fn $name() {
                $crate::scenarios::$name::<$backend>().await;
            }
        )+
    };
}
pub(crate) use suite;

pub(crate) fn policy(quota: &str) -> Policy {
    Policy::parse("api", [quota]).unwrap()
}

/// Retries until the store decides. All errors before must be transient.
pub(crate) async fn eventually<S: Store>(limiter: &StoreLimiter<S>, check: Check<'_>) -> Decision {
    for _ in 0..3000 {
        match limiter.check(check).await {
            Ok(decision) => return decision,
            Err(error) => assert!(error.is_transient(), "{error}"),
        }
        pause().await;
    }
    panic!("no decision about {check:?}");
}

/// Retries until an error reports that the request was not sent.
pub(crate) async fn wait_for_unsent_error<S: Store>(
    limiter: &StoreLimiter<S>,
    check: Check<'_>,
) -> StoreError {
    for _ in 0..100 {
        let error = limiter.check(check).await.unwrap_err();
        if !error.may_have_counted() {
            return error;
        }
    }
    panic!("each request was sent");
}

/// Waits for a condition of another process.
pub(crate) async fn wait_until(what: &str, mut is_fulfilled: impl FnMut() -> bool) {
    for _ in 0..3000 {
        if is_fulfilled() {
            return;
        }
        pause().await;
    }
    panic!("not in time: {what}");
}

/// Waits for another process; there is no event to wait for.
pub(crate) async fn pause() {
    SystemClock::default().sleep(10).await;
}

pub(crate) async fn used<S: Store>(limiter: &StoreLimiter<S>, check: Check<'_>) -> u64 {
    eventually(limiter, check.cost(0)).await.quotas()[0].used
}
