//! Extraction of a request's key.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use http::HeaderName;

use super::head::RequestHead;
use super::key_bytes::KeyBytes;
use crate::address::ClientAddress;

/// Extracts the key that a request counts for from one or more of its parts. An empty key counts as missing.
///
/// ```
/// use slidegate::tower::{ClientAddress, Key};
///
/// #[derive(Clone)]
/// struct User(u64);
///
/// let by_address = Key::address(ClientAddress::peer());
/// // The user that an earlier layer has found, separately on each path.
/// let by_user = Key::all([Key::extension(|user: &User| user.0.to_string()), Key::path()]);
/// let by_tenant = Key::by(|request| request.uri.host().map(str::to_owned));
/// # let _ = (by_address, by_user, by_tenant);
/// ```
#[derive(Clone)]
pub struct Key {
    extract: Arc<dyn Extract>,
    /// Whether extraction always completes without waiting.
    is_sync: bool,
    /// Set if the key is an address, the default, so that no dynamic call is needed to extract it.
    address: Option<ClientAddress>,
}

/// Key of a request, ready or pending; `None` if the request has no key.
pub(super) enum Extracted<'a> {
    Now(Option<KeyBytes>),
    Later(Pin<Box<dyn Future<Output = Option<KeyBytes>> + Send + 'a>>),
}

impl Extracted<'_> {
    pub(super) async fn resolve(self) -> Option<KeyBytes> {
        match self {
            Self::Now(name) => name,
            Self::Later(name) => name.await,
        }
    }
}

trait Extract: Send + Sync {
    fn find<'a>(&'a self, request: &'a RequestHead<'a>) -> Extracted<'a>;
}

/// Extraction without waiting.
struct SyncExtract<F>(F);

impl<F: Fn(&RequestHead<'_>) -> Option<KeyBytes> + Send + Sync> Extract for SyncExtract<F> {
    fn find<'a>(&'a self, request: &'a RequestHead<'a>) -> Extracted<'a> {
        Extracted::Now((self.0)(request))
    }
}

/// Extraction with a future.
struct AsyncExtract<F>(F);

impl<F, R> Extract for AsyncExtract<F>
where
    F: Fn(&RequestHead<'_>) -> R + Send + Sync,
    R: Future<Output = Option<KeyBytes>> + Send + 'static,
{
    fn find<'a>(&'a self, request: &'a RequestHead<'a>) -> Extracted<'a> {
        Extracted::Later(Box::pin((self.0)(request)))
    }
}

impl Key {
    /// Counts per client address.
    pub fn address(source: ClientAddress) -> Self {
        let address = Some(source.clone());
        let key = Self::sync(move |request| request.client_address(&source).map(KeyBytes::from));
        Self { address, ..key }
    }

    /// Counts per value of a header, such as an API key. Not for headers that clients can set to any value. A header
    /// with two values counts as missing, because the authentication may have checked the other one.
    pub fn header(name: HeaderName) -> Self {
        Self::sync(move |request| {
            let mut values = request.headers.get_all(&name).iter();
            let only = values.next().filter(|_| values.next().is_none())?;
            Some(only.as_bytes().into())
        })
    }

    /// Counts per [path](RequestHead::path), without the query.
    pub fn path() -> Self {
        Self::sync(|request| Some(request.path().as_bytes().into()))
    }

    /// Counts per axum route, such as `/users/{id}`: one counter for all its paths. Missing if no route matches, and in
    /// layers around the router, which run before the match.
    #[cfg(feature = "axum")]
    pub fn matched_path() -> Self {
        Self::sync(|request| {
            let path = request.extensions.get::<axum::extract::MatchedPath>()?;
            Some(path.as_str().as_bytes().into())
        })
    }

    /// Counts per first pattern that matches the path: in `/users/*/orders` a `*` matches one segment, in `/static/**`
    /// two match all remaining segments. So a client cannot get more counters by requesting more paths.
    pub fn path_pattern<P: Into<String>>(patterns: impl IntoIterator<Item = P>) -> Self {
        let patterns: Vec<String> = patterns.into_iter().map(Into::into).collect();
        Self::sync(move |request| {
            let matches_pattern = |pattern: &&String| matches_pattern(pattern, request.path());
            patterns.iter().find(matches_pattern).map(|pattern| pattern.as_bytes().into())
        })
    }

    /// Counts per method.
    pub fn method() -> Self {
        Self::sync(|request| Some(request.method.as_str().as_bytes().into()))
    }

    /// Counts per value that an earlier layer has put into the request's extensions, such as the user.
    pub fn extension<T, K>(name: impl Fn(&T) -> K + Send + Sync + 'static) -> Self
    where
        T: Clone + Send + Sync + 'static,
        K: Into<Vec<u8>>,
    {
        Self::sync(move |request| {
            request.extensions.get::<T>().map(|found| KeyBytes::Long(name(found).into()))
        })
    }

    /// Counts per result of `find`.
    pub fn by<K: Into<Vec<u8>>>(
        find: impl Fn(&RequestHead<'_>) -> Option<K> + Send + Sync + 'static,
    ) -> Self {
        Self::sync(move |request| find(request).map(|name| KeyBytes::Long(name.into())))
    }

    /// Counts per result of the future that `find` returns.
    pub fn by_async<R, K>(find: impl Fn(&RequestHead<'_>) -> R + Send + Sync + 'static) -> Self
    where
        R: Future<Output = Option<K>> + Send + 'static,
        K: Into<Vec<u8>>,
    {
        let extract = AsyncExtract(move |request: &RequestHead<'_>| {
            let found = find(request);
            async move { found.await.map(|name| KeyBytes::Long(name.into())).filter(|name| !name.is_empty()) }
        });
        Self { extract: Arc::new(extract), is_sync: false, address: None }
    }

    /// Combines several keys. Missing if one of them is missing, or if there are none.
    pub fn all(keys: impl IntoIterator<Item = Self>) -> Self {
        let keys: Vec<Self> = keys.into_iter().collect();
        Self { is_sync: keys.iter().all(|key| key.is_sync), extract: Arc::new(All(keys)), address: None }
    }

    /// Uses the first key that is present.
    pub fn first_of(keys: impl IntoIterator<Item = Self>) -> Self {
        let keys: Vec<Self> = keys.into_iter().collect();
        Self { is_sync: keys.iter().all(|key| key.is_sync), extract: Arc::new(FirstOf(keys)), address: None }
    }

    fn sync(find: impl Fn(&RequestHead<'_>) -> Option<KeyBytes> + Send + Sync + 'static) -> Self {
        // An empty key counts as missing.
        let find = move |request: &RequestHead<'_>| find(request).filter(|name| !name.is_empty());
        Self { extract: Arc::new(SyncExtract(find)), is_sync: true, address: None }
    }

    pub(super) fn find<'a>(&'a self, request: &'a RequestHead<'a>) -> Extracted<'a> {
        self.extract.find(request)
    }

    /// Extracts the key without waiting. Returns `None`, without calling any extractor, if it may have to wait.
    #[inline(always)]
    pub(super) fn find_now<'a>(&'a self, request: &'a RequestHead<'a>) -> Option<Extracted<'a>> {
        match &self.address {
            Some(source) => Some(Extracted::Now(request.client_address(source).map(KeyBytes::from))),
            None => self.is_sync.then(|| self.find(request)),
        }
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Key").finish_non_exhaustive()
    }
}

struct All(Vec<Key>);

impl Extract for All {
    fn find<'a>(&'a self, request: &'a RequestHead<'a>) -> Extracted<'a> {
        // An empty list would give all requests the same key.
        if self.0.is_empty() {
            return Extracted::Now(None);
        }
        let mut joined = Vec::new();
        for (index, key) in self.0.iter().enumerate() {
            match key.find(request) {
                Extracted::Now(Some(name)) => join(&mut joined, &name),
                Extracted::Now(None) => return Extracted::Now(None),
                Extracted::Later(first) => {
                    let others = &self.0[index + 1..];
                    return Extracted::Later(Box::pin(async move {
                        join(&mut joined, &first.await?);
                        for key in others {
                            join(&mut joined, &key.find(request).resolve().await?);
                        }
                        Some(KeyBytes::Long(joined))
                    }));
                }
            }
        }
        Extracted::Now(Some(KeyBytes::Long(joined)))
    }
}

/// Appends a key behind its length, so that `a` and `bc` differ from `ab` and `c`.
fn join(joined: &mut Vec<u8>, name: &[u8]) {
    joined.extend((name.len() as u64).to_be_bytes());
    joined.extend(name);
}

struct FirstOf(Vec<Key>);

impl Extract for FirstOf {
    fn find<'a>(&'a self, request: &'a RequestHead<'a>) -> Extracted<'a> {
        for (index, key) in self.0.iter().enumerate() {
            match key.find(request) {
                Extracted::Now(Some(name)) => return Extracted::Now(Some(numbered(index, &name))),
                Extracted::Now(None) => {}
                Extracted::Later(first) => {
                    let others = &self.0[index + 1..];
                    return Extracted::Later(Box::pin(async move {
                        if let Some(name) = first.await {
                            return Some(numbered(index, &name));
                        }
                        for (more, key) in others.iter().enumerate() {
                            if let Some(name) = key.find(request).resolve().await {
                                return Some(numbered(index + 1 + more, &name));
                            }
                        }
                        None
                    }));
                }
            }
        }
        Extracted::Now(None)
    }
}

/// Prefixes a key with its position, so that a user name that looks like an address does not share that address's
/// counter.
fn numbered(index: usize, name: &[u8]) -> KeyBytes {
    KeyBytes::Long([&(index as u64).to_be_bytes(), name].concat())
}

/// Returns whether `path` matches a pattern. `*` matches one segment, a `**` at the end all remaining segments.
fn matches_pattern(pattern: &str, path: &str) -> bool {
    let mut segments = path.split('/');
    for part in pattern.split('/') {
        match (part, segments.next()) {
            ("**", Some(_)) => return true,
            ("*", Some(segment)) if !segment.is_empty() => {}
            (part, Some(segment)) if part == segment => {}
            _ => return false,
        }
    }
    segments.next().is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(uri: &str) -> http::request::Parts {
        http::Request::get(uri).header("x-api-key", "secret").body(()).unwrap().into_parts().0
    }

    async fn extract(key: Key, request: &http::request::Parts) -> Option<Vec<u8>> {
        Some(key.find(&request.into()).resolve().await?.to_vec())
    }

    fn text(text: &'static str) -> Key {
        Key::by(move |_| Some(text))
    }

    fn text_later(text: &'static str) -> Key {
        Key::by_async(move |_| async move { Some(text) })
    }

    #[tokio::test]
    async fn each_extractor_reads_its_part_of_the_request() {
        #[derive(Clone)]
        struct User(u8);
        let mut parts = request("/users/7?page=2");
        assert_eq!(extract(Key::path(), &parts).await.unwrap(), b"/users/7");
        assert_eq!(extract(Key::method(), &parts).await.unwrap(), b"GET");
        let header = |name| Key::header(HeaderName::from_static(name));
        assert_eq!(extract(header("x-api-key"), &parts).await.unwrap(), b"secret");
        assert_eq!(extract(header("x-other"), &parts).await, None);
        let user = || Key::extension(|user: &User| [user.0]);
        assert_eq!(extract(user(), &parts).await, None);
        parts.extensions.insert(User(9));
        assert_eq!(extract(user(), &parts).await.unwrap(), [9]);
        assert_eq!(extract(Key::address(ClientAddress::peer()), &parts).await, None);
        parts.headers.append("x-api-key", "another".parse().unwrap());
        assert_eq!(extract(header("x-api-key"), &parts).await, None, "two values are ambiguous");
        parts.headers.insert("x-api-key", "".parse().unwrap());
        let empty_or_user = Key::first_of([header("x-api-key"), text(""), text_later(""), user()]);
        assert_eq!(
            extract(empty_or_user, &parts).await.unwrap(),
            [0, 0, 0, 0, 0, 0, 0, 3, 9],
            "empty is missing"
        );
    }

    #[tokio::test]
    async fn combined_keys_are_unambiguous() {
        let parts = request("/");
        let joined = |a, b| extract(Key::all([text(a), text(b)]), &parts);
        assert_ne!(joined("a", "bc").await, joined("ab", "c").await);
        assert_eq!(joined("a", "bc").await, extract(Key::all([text_later("a"), text("bc")]), &parts).await);
        assert_eq!(joined("a", "bc").await, extract(Key::all([text("a"), text_later("bc")]), &parts).await);
        assert_eq!(extract(Key::all([text("a"), Key::by(|_| None::<String>)]), &parts).await, None);
        assert_eq!(extract(Key::all([]), &parts).await, None, "an empty list has no key");
        assert_eq!(extract(Key::first_of([]), &parts).await, None);
        assert_eq!(extract(Key::all([Key::all([]), text("a")]), &parts).await, None);
        assert_ne!(
            extract(Key::first_of([text("a")]), &parts).await,
            extract(Key::first_of([Key::by(|_| None::<String>), text("a")]), &parts).await,
            "found at another position"
        );
        let missing = || Key::by_async(|_| async { None::<String> });
        let found = extract(Key::first_of([missing(), missing(), text("a")]), &parts).await;
        assert_eq!(found, extract(Key::first_of([missing(), missing(), text_later("a")]), &parts).await);
        assert!(found.is_some());
    }

    #[test]
    fn patterns_match_segments() {
        for (pattern, path, expected) in [
            ("/users/*", "/users/7", true),
            ("/users/*", "/users/", false),
            ("/users/*", "/users/7/orders", false),
            ("/users/*/orders", "/users/7/orders", true),
            ("/static/**", "/static/a/b/c", true),
            ("/static/**", "/static", false),
            ("/", "/", true),
            ("/a", "/a/", false),
        ] {
            assert_eq!(matches_pattern(pattern, path), expected, "{pattern} {path}");
        }
    }
}
