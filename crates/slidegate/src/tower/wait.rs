//! Client layer that waits to stay under another service's limit.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::header::HOST;
use http::uri::Authority;
use http::{Request, Response};
use slidegate_core::{Check, Decision, Policy};
use tower_layer::Layer;
use tower_service::Service;

use super::choice::TierName;
use super::head::RequestHead;
use super::key::Key;
use super::limiter_store::LimiterStore;
use super::pause::Pauses;
use super::payment::Before;
use crate::error::StoreError;
use crate::limiter::Limiter;
use crate::store::{Store, StoreLimiter};

/// Reason why a request was not sent, or why it failed.
#[derive(Debug)]
#[non_exhaustive]
pub enum WaitError<E> {
    /// The policy requires a wait longer than the maximum.
    TooLong(Decision),
    /// The server requires a pause of this length, longer than the maximum wait.
    Paused(Duration),
    /// The store failed.
    Undecided(StoreError),
    /// The request was sent and failed.
    Inner(E),
}

impl<E: fmt::Display> fmt::Display for WaitError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLong(decision) => match decision.retry_after_ms() {
                Some(ms) => write!(f, "not sent: the limit allows it in {ms} ms"),
                None => f.write_str("not sent: the limit never allows it"),
            },
            Self::Paused(left) => write!(f, "not sent: the server requires a pause of {left:?}"),
            Self::Undecided(error) => write!(f, "not sent: {error}"),
            Self::Inner(error) => error.fmt(f),
        }
    }
}

impl<E: std::error::Error + 'static> std::error::Error for WaitError<E> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Undecided(error) => Some(error),
            Self::Inner(error) => error.source(),
            Self::TooLong(_) | Self::Paused(_) => None,
        }
    }
}

/// Delays outgoing requests so that they stay under a limit, and follows responses of the server. All requests with the
/// same key pause after a `Retry-After` with 429 or 503 (or gRPC's `RESOURCE_EXHAUSTED` or `UNAVAILABLE`), or after a
/// `RateLimit` without remaining units. Never sends a request twice.
///
/// ```
/// use std::time::Duration;
///
/// use slidegate::Limiter;
/// use slidegate::tower::WaitLayer;
///
/// let their_api = Limiter::builder("their-api")
///     .quotas(["10/1s strict-window"])
///     .tier("search", ["1/1s strict-window"])
///     .in_memory()?;
/// let layer = WaitLayer::new(their_api, Duration::from_secs(30))
///     .tier(|request| request.path().starts_with("/search").then_some("search"));
/// # let _ = layer;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct WaitLayer<S = LimiterStore> {
    rules: Arc<Rules<S>>,
}

struct Rules<S> {
    limiter: Arc<StoreLimiter<S>>,
    policy: Policy,
    tiers: Option<Tiers>,
    key: Key,
    max_wait: Duration,
    pauses: Pauses,
}

/// Tiers of a limiter, and the function that names the tier of a request.
#[derive(Clone)]
struct Tiers {
    limiter: Limiter,
    name: TierName,
}

impl WaitLayer {
    /// Keeps requests to each host and port under the limiter's policy. No request waits longer than `max_wait`. The host
    /// comes from the URI, or from the `Host` header. Requests without a host share one counter, for example all requests
    /// of a tonic client, whose channel knows the host.
    pub fn new(limiter: Limiter, max_wait: Duration) -> Self {
        let policy = limiter.policy().clone();
        Self::over(Arc::new(StoreLimiter::new(LimiterStore(limiter))), policy, max_wait)
    }

    /// Chooses the limiter's tier of each request that has a key; `None` applies the quotas without a tier.
    ///
    /// A request with an unknown tier is not sent; its error, [`Undecided`](WaitError::Undecided), names the known tiers.
    ///
    /// Only a layer built by [`new`](Self::new) has this method; one [over](Self::over) a store has no tiers:
    ///
    /// ```compile_fail,E0599
    /// # use std::sync::Arc;
    /// # use std::time::Duration;
    /// # use slidegate::Policy;
    /// # use slidegate::store::{MemoryStore, StoreLimiter};
    /// # use slidegate::tower::WaitLayer;
    /// let limiter = Arc::new(StoreLimiter::new(MemoryStore::new()));
    /// let layer = WaitLayer::over(limiter, Policy::parse("api", ["100/1m"])?, Duration::ZERO).tier(|_| None);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn tier(
        self,
        tier: impl for<'a> Fn(&'a RequestHead<'_>) -> Option<&'a str> + Send + Sync + 'static,
    ) -> Self {
        self.with(|rules| {
            rules.tiers = Some(Tiers { limiter: rules.limiter.store().0.clone(), name: Arc::new(tier) });
        })
    }
}

impl<S: Store> WaitLayer<S> {
    /// Keeps requests under a policy as [`new`](WaitLayer::new) does, over a store of any type.
    pub fn over(limiter: Arc<StoreLimiter<S>>, policy: Policy, max_wait: Duration) -> Self {
        let key = Key::by(|request| Some(server_of(request)));
        let pauses = Pauses::default();
        Self { rules: Arc::new(Rules { limiter, policy, tiers: None, key, max_wait, pauses }) }
    }

    /// Sets the key of requests in place of the host and port. Requests without a key are sent without a wait.
    pub fn key(self, key: Key) -> Self {
        self.with(|rules| rules.key = key)
    }

    /// Returns a layer with other rules, and with pauses of its own.
    fn with(self, change: impl FnOnce(&mut Rules<S>)) -> Self {
        let Rules { limiter, policy, tiers, key, max_wait, .. } = &*self.rules;
        let mut rules = Rules {
            limiter: Arc::clone(limiter),
            policy: policy.clone(),
            tiers: tiers.clone(),
            key: key.clone(),
            max_wait: *max_wait,
            pauses: Pauses::default(),
        };
        change(&mut rules);
        Self { rules: Arc::new(rules) }
    }
}

/// Key of requests without a host. Not a valid host name.
const UNKNOWN_SERVER: &str = "?";

/// Returns the normalised host and port that a request goes to.
fn server_of(request: &RequestHead<'_>) -> String {
    let named = request.headers.get(HOST).and_then(|host| Authority::try_from(host.as_bytes()).ok());
    let Some(authority) = request.uri.authority().or(named.as_ref()) else {
        return UNKNOWN_SERVER.to_owned();
    };
    let host = authority.host().trim_end_matches('.').to_ascii_lowercase();
    if host.is_empty() {
        return UNKNOWN_SERVER.to_owned();
    }
    let port = authority.port_u16().or(match request.uri.scheme_str() {
        Some("https" | "wss") => Some(443),
        Some("http" | "ws") => Some(80),
        _ => None,
    });
    port.map_or_else(|| host.clone(), |port| format!("{host}:{port}"))
}

impl<S> Clone for WaitLayer<S> {
    fn clone(&self) -> Self {
        Self { rules: Arc::clone(&self.rules) }
    }
}

impl<S> fmt::Debug for WaitLayer<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WaitLayer").field("max_wait", &self.rules.max_wait).finish_non_exhaustive()
    }
}

impl<S, I> Layer<I> for WaitLayer<S> {
    type Service = Wait<S, I>;

    fn layer(&self, inner: I) -> Wait<S, I> {
        Wait { rules: Arc::clone(&self.rules), inner }
    }
}

/// Client service that waits. Created by [`WaitLayer`].
pub struct Wait<S, I> {
    rules: Arc<Rules<S>>,
    inner: I,
}

impl<S, I: Clone> Clone for Wait<S, I> {
    fn clone(&self) -> Self {
        Self { rules: Arc::clone(&self.rules), inner: self.inner.clone() }
    }
}

impl<S, I: fmt::Debug> fmt::Debug for Wait<S, I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wait").field("inner", &self.inner).finish_non_exhaustive()
    }
}

impl<S: Store> Rules<S> {
    /// Returns the policy of a request, or an error if its tier is unknown.
    fn policy(&self, request: &RequestHead<'_>) -> Result<&Policy, StoreError> {
        let Some(Tiers { limiter, name }) = &self.tiers else { return Ok(&self.policy) };
        let Some(name) = name(request) else { return Ok(&self.policy) };
        limiter.tier_policy(name).ok_or_else(|| limiter.unknown_tier(name))
    }

    /// Waits until a request with this check may be sent and `inner` is ready.
    async fn wait<I: Service<Q> + Clone, Q>(
        &self,
        check: Check<'_>,
        inner: &mut I,
    ) -> Result<(), WaitError<I::Error>> {
        let clock = self.limiter.store().clock();
        let max_wait_ms = u64::try_from(self.max_wait.as_millis()).unwrap_or(u64::MAX);
        let end_ms = clock.now_ms().saturating_add(max_wait_ms);
        loop {
            self.wait_for_server(check.key, end_ms).await?;
            let left = Duration::from_millis(end_ms.saturating_sub(clock.now_ms()));
            let decision = self.limiter.wait(check, left).await.map_err(WaitError::Undecided)?;
            if !decision.is_allowed() {
                return Err(WaitError::TooLong(decision));
            }
            let at_ms = clock.now_ms();
            ready(inner).await?;
            let now_ms = clock.now_ms();
            if self.pauses.left_ms(check.key, now_ms) == 0 {
                return Ok(());
            }
            // A response has requested a pause meanwhile. The request was not sent, so its cost is refunded. Without a
            // refund, the client only sends fewer requests than allowed.
            *inner = inner.clone();
            if (Before { decision: &decision, at_ms }).is_refundable(check.policy, now_ms) {
                drop(self.limiter.refund(check).await);
            }
        }
    }

    /// Waits while a pause that the server requested lasts.
    async fn wait_for_server<E>(&self, key: &[u8], end_ms: u64) -> Result<(), WaitError<E>> {
        let clock = self.limiter.store().clock();
        loop {
            let now_ms = clock.now_ms();
            match self.pauses.left_ms(key, now_ms) {
                0 => return Ok(()),
                left_ms if left_ms > end_ms.saturating_sub(now_ms) => {
                    return Err(WaitError::Paused(Duration::from_millis(left_ms)));
                }
                // Another response may extend the pause during this sleep.
                left_ms => clock.sleep(left_ms).await,
            }
        }
    }
}

async fn ready<I: Service<Q>, Q>(inner: &mut I) -> Result<(), WaitError<I::Error>> {
    poll_fn(|context| inner.poll_ready(context)).await.map_err(WaitError::Inner)
}

impl<S, I, Q, B> Service<Request<Q>> for Wait<S, I>
where
    S: Store + 'static,
    I: Service<Request<Q>, Response = Response<B>> + Clone + Send + 'static,
    I::Future: Send,
    Q: Send + 'static,
    B: Send + 'static,
{
    type Response = Response<B>;
    type Error = WaitError<I::Error>;
    type Future = Pin<Box<dyn Future<Output = Result<Response<B>, Self::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(context).map_err(WaitError::Inner)
    }

    fn call(&mut self, request: Request<Q>) -> Self::Future {
        // The polled service may hold a permit, which a sleeping request must not hold. It polls again after its sleep.
        self.inner = self.inner.clone();
        let mut inner = self.inner.clone();
        let rules = Arc::clone(&self.rules);
        Box::pin(async move {
            let (parts, body) = request.into_parts();
            let key = rules.key.find(&(&parts).into()).resolve().await;
            if let Some(key) = &key {
                let policy = rules.policy(&(&parts).into()).map_err(WaitError::Undecided)?;
                rules.wait(policy.key(&**key), &mut inner).await?;
            } else {
                ready(&mut inner).await?;
            }
            let response = inner.call(Request::from_parts(parts, body)).await.map_err(WaitError::Inner)?;
            let (parts, body) = response.into_parts();
            if let Some(key) = &key {
                rules.pauses.record(key, &parts, rules.limiter.store().clock().now_ms());
            }
            Ok(Response::from_parts(parts, body))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn different_spellings_of_a_server_share_a_key() {
        for (uri, host, expected) in [
            ("http://example.test/a?b", None, "example.test:80"),
            ("http://EXAMPLE.test:80/", None, "example.test:80"),
            ("http://user:secret@example.test./", None, "example.test:80"),
            ("https://example.test/", Some("other.test"), "example.test:443"),
            ("https://example.test:8443/", None, "example.test:8443"),
            ("http://[2001:DB8::1]/", None, "[2001:db8::1]:80"),
            ("/path", Some("Example.test:8080"), "example.test:8080"),
            ("/path", Some("example.test"), "example.test"),
            ("/path", Some("not a host"), "?"),
            ("/path", Some(""), "?"),
            ("/path", Some("."), "?"),
            ("/package.Service/Method", None, "?"),
        ] {
            let request =
                host.into_iter().fold(Request::get(uri), |request, host| request.header(HOST, host));
            assert_eq!(server_of(&(&request.body(()).unwrap()).into()), expected, "{uri} {host:?}");
        }
    }
}
