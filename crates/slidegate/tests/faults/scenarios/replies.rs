//! Replies that do not arrive.

use slidegate_testkit::FaultProxy;

use super::{policy, used};
use crate::backend::{Backend, Settings, connect_with};

pub(crate) async fn a_cut_reply_is_an_error_and_the_request_is_not_resent<B: Backend>() {
    let server = B::start();
    let proxy = FaultProxy::start(server.address());
    // With a second connection, which reconnects in the background, the cut could hit its reply.
    let settings = Settings { connections: 1, ..Settings::default() };
    let limiter = connect_with::<B>(&B::url_at(proxy.address()), settings).await;
    let policy = policy("1000/1h");
    assert!(limiter.check(policy.key("a")).await.unwrap().is_allowed());
    for (cuts, bytes) in B::PARTS_OF_REPLY.into_iter().enumerate() {
        proxy.cut_reply_after(bytes);
        let error = limiter.check(policy.key("a")).await.unwrap_err();
        assert!(error.is_transient() && error.may_have_counted(), "{error}");
        // The server counted the request once; the store did not resend it.
        assert_eq!(used(&limiter, policy.key("a")).await, 2 + cuts as u64, "after {bytes} bytes");
    }
}
