//! A layer for clients: it waits to stay under somebody else's limit.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::header::HOST;
use http::uri::Authority;
use http::{Request, Response};
use slidegate_core::Decision;
use tower_layer::Layer;
use tower_service::Service;

use super::after::Before;
use super::head::RequestHead;
use super::key::Key;
use super::pause::Pauses;
use super::tier::Tier;
use crate::error::StoreError;
use crate::limiter::Limiter;
use crate::store::Store;

/// Why a request was not sent, or what became of it.
#[derive(Debug)]
#[non_exhaustive]
pub enum WaitError<E> {
    /// To stay under one's own limit would take longer than the patience.
    TooLong(Decision),
    /// The server has asked to be left alone for this much longer, which is more than the patience.
    Paused(Duration),
    /// The store has not decided.
    Undecided(StoreError),
    /// It was sent and has failed.
    Inner(E),
}

impl<E: fmt::Display> fmt::Display for WaitError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLong(decision) => match decision.retry_after_ms() {
                Some(ms) => write!(f, "not sent: the limit allows it in {ms} ms"),
                None => f.write_str("not sent: the limit never allows it"),
            },
            Self::Paused(left) => write!(f, "not sent: the server wants to be left alone for {left:?}"),
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

/// Delays outgoing requests so that they stay under a limit, and honours what servers say: after a `Retry-After` with 429 or
/// 503 (or gRPC's `RESOURCE_EXHAUSTED` or `UNAVAILABLE`), or a `RateLimit` with nothing left, whoever has the same key waits.
/// Nothing is sent twice.
///
/// ```
/// use std::sync::Arc;
/// use std::time::Duration;
///
/// use slidegate::tower::WaitLayer;
/// use slidegate::{Limiter, MemoryStore, Policy};
///
/// let limiter = Arc::new(Limiter::new(MemoryStore::new()));
/// let policy = Policy::parse("their-api", ["10/1s strict-window"])?;
/// let layer = WaitLayer::new(limiter, policy, Duration::from_secs(30));
/// # let _ = layer;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct WaitLayer<S> {
    rules: Arc<Rules<S>>,
}

struct Rules<S> {
    limiter: Arc<Limiter<S>>,
    tier: Tier,
    key: Key,
    patience: Duration,
    pauses: Pauses,
}

impl<S: Store> WaitLayer<S> {
    /// Requests to each host and port stay under this policy; none waits longer than `patience`. The host is that of the
    /// URI, else that of the `Host` header. All requests that name none count together: those of a tonic client do not,
    /// because its channel knows where they go.
    pub fn new(limiter: Arc<Limiter<S>>, policy: impl Into<Tier>, patience: Duration) -> Self {
        Self::by_key(limiter, policy, patience, Key::by(|request| Some(server(request))))
    }

    /// The same, with a key of one's own. Requests without one are not held up.
    pub fn by_key(limiter: Arc<Limiter<S>>, policy: impl Into<Tier>, patience: Duration, key: Key) -> Self {
        let rules = Rules { limiter, tier: policy.into(), key, patience, pauses: Pauses::default() };
        Self { rules: Arc::new(rules) }
    }
}

/// Where requests go that do not say it. No host is called like this.
const NOWHERE: &str = "?";

/// Where a request goes, however it is written.
fn server(request: &RequestHead<'_>) -> String {
    let named = request.headers.get(HOST).and_then(|host| Authority::try_from(host.as_bytes()).ok());
    let Some(authority) = request.uri.authority().or(named.as_ref()) else { return NOWHERE.to_owned() };
    let host = authority.host().trim_end_matches('.').to_ascii_lowercase();
    if host.is_empty() {
        return NOWHERE.to_owned();
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
        let Rules { tier, patience, .. } = &*self.rules;
        f.debug_struct("WaitLayer").field("tier", tier).field("patience", patience).finish_non_exhaustive()
    }
}

impl<S, I> Layer<I> for WaitLayer<S> {
    type Service = Wait<S, I>;

    fn layer(&self, inner: I) -> Wait<S, I> {
        Wait { rules: Arc::clone(&self.rules), inner }
    }
}

/// A client that waits. Made by [`WaitLayer`].
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
    /// Waits until a request with this key may be sent, and `inner` is ready to send it.
    async fn wait<I: Service<Q> + Clone, Q>(
        &self,
        key: &[u8],
        inner: &mut I,
    ) -> Result<(), WaitError<I::Error>> {
        let clock = self.limiter.store().clock();
        let patience_ms = u64::try_from(self.patience.as_millis()).unwrap_or(u64::MAX);
        let end_ms = clock.now_ms().saturating_add(patience_ms);
        let check = self.tier.policy().key(key);
        loop {
            self.wait_for_server(key, end_ms).await?;
            let left = Duration::from_millis(end_ms.saturating_sub(clock.now_ms()));
            let decision = self.limiter.wait(check, left).await.map_err(WaitError::Undecided)?;
            if !decision.is_allowed() {
                return Err(WaitError::TooLong(decision));
            }
            let at_ms = clock.now_ms();
            ready(inner).await?;
            let now_ms = clock.now_ms();
            if self.pauses.left_ms(key, now_ms) == 0 {
                return Ok(());
            }
            // The server has asked to be left alone meanwhile. Nothing was sent, so nothing is spent; if it cannot be
            // given back, fewer are sent than might be.
            *inner = inner.clone();
            if (Before { decision: &decision, at_ms }).is_refundable(check.policy, now_ms) {
                drop(self.limiter.refund(check).await);
            }
        }
    }

    /// Waits as long as the server wants to be left alone.
    async fn wait_for_server<E>(&self, key: &[u8], end_ms: u64) -> Result<(), WaitError<E>> {
        let clock = self.limiter.store().clock();
        loop {
            let now_ms = clock.now_ms();
            match self.pauses.left_ms(key, now_ms) {
                0 => return Ok(()),
                left_ms if left_ms > end_ms.saturating_sub(now_ms) => {
                    return Err(WaitError::Paused(Duration::from_millis(left_ms)));
                }
                // Others may hear of another pause while this one waits.
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
        // What the inner service has set aside when it was ready, such as a permit, is not for those who sleep. They ask
        // for it again when they wake up.
        self.inner = self.inner.clone();
        let mut inner = self.inner.clone();
        let rules = Arc::clone(&self.rules);
        Box::pin(async move {
            let (parts, body) = request.into_parts();
            let key = rules.key.find(&(&parts).into()).name().await;
            match &key {
                Some(key) => rules.wait(key, &mut inner).await?,
                None => ready(&mut inner).await?,
            }
            let response = inner.call(Request::from_parts(parts, body)).await.map_err(WaitError::Inner)?;
            let (parts, body) = response.into_parts();
            if let Some(key) = &key {
                rules.pauses.hear(key, &parts, rules.limiter.store().clock().now_ms());
            }
            Ok(Response::from_parts(parts, body))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_one_however_it_is_written() {
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
            assert_eq!(server(&(&request.body(()).unwrap()).into()), expected, "{uri} {host:?}");
        }
    }
}
