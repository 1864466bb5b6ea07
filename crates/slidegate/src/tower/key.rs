//! Whom a request counts for.

use std::fmt;
use std::future::Future;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;

use http::HeaderName;

use super::address::ClientAddress;
use super::head::RequestHead;
use super::name::Name;

/// What a request counts for, made of one or more of its parts. One that is empty is none.
///
/// ```
/// use slidegate::tower::{ClientAddress, Key};
///
/// #[derive(Clone)]
/// struct User(u64);
///
/// let by_address = Key::address(ClientAddress::peer());
/// // The user that an earlier layer has found, on each path for itself.
/// let by_user = Key::all([Key::extension(|user: &User| user.0.to_string()), Key::path()]);
/// let by_tenant = Key::by(|request| request.uri.host().map(str::to_owned));
/// # let _ = (by_address, by_user, by_tenant);
/// ```
#[derive(Clone)]
pub struct Key {
    extract: Arc<dyn Extract>,
    /// Whether it is always found at once.
    is_known: bool,
}

/// A name, now or later; none if the request does not say who it is.
pub(super) enum Found<'a> {
    Now(Option<Name>),
    Later(Pin<Box<dyn Future<Output = Option<Name>> + Send + 'a>>),
}

impl Found<'_> {
    pub(super) async fn name(self) -> Option<Name> {
        match self {
            Self::Now(name) => name,
            Self::Later(name) => name.await,
        }
    }
}

trait Extract: Send + Sync {
    fn find<'a>(&'a self, request: &'a RequestHead<'a>) -> Found<'a>;
}

/// What is known at once.
struct Known<F>(F);

impl<F: Fn(&RequestHead<'_>) -> Option<Name> + Send + Sync> Extract for Known<F> {
    fn find<'a>(&'a self, request: &'a RequestHead<'a>) -> Found<'a> {
        Found::Now((self.0)(request))
    }
}

/// What has to be asked for.
struct Asked<F>(F);

impl<F, R> Extract for Asked<F>
where
    F: Fn(&RequestHead<'_>) -> R + Send + Sync,
    R: Future<Output = Option<Name>> + Send + 'static,
{
    fn find<'a>(&'a self, request: &'a RequestHead<'a>) -> Found<'a> {
        Found::Later(Box::pin((self.0)(request)))
    }
}

impl Key {
    /// The client's address.
    pub fn address(way: ClientAddress) -> Self {
        Self::sync(move |request| {
            way.of(request).map(|address| match address {
                IpAddr::V4(address) => address.octets().as_slice().into(),
                IpAddr::V6(address) => address.octets().as_slice().into(),
            })
        })
    }

    /// The value of a header, such as an API key. Not for what anybody can write as he likes. None if it is there twice:
    /// whoever checks it may have looked at the other one.
    pub fn header(name: HeaderName) -> Self {
        Self::sync(move |request| {
            let mut values = request.headers.get_all(&name).iter();
            let only = values.next().filter(|_| values.next().is_none())?;
            Some(only.as_bytes().into())
        })
    }

    /// The [path](RequestHead::path) that the client has asked for, without the query.
    pub fn path() -> Self {
        Self::sync(|request| Some(request.path().as_bytes().into()))
    }

    /// The route that axum has chosen, such as `/users/{id}`: one counter for all its paths. None where no route fits, and
    /// in layers around the router, which have yet to know.
    #[cfg(feature = "axum")]
    pub fn matched_path() -> Self {
        Self::sync(|request| {
            let path = request.extensions.get::<axum::extract::MatchedPath>()?;
            Some(path.as_str().as_bytes().into())
        })
    }

    /// The first of these patterns that fits the path: `/users/*/orders` with a `*` for one segment, `/static/**` with
    /// two for all that follow. So that whoever asks for many paths does not get as many counters.
    pub fn path_pattern<P: Into<String>>(patterns: impl IntoIterator<Item = P>) -> Self {
        let patterns: Vec<String> = patterns.into_iter().map(Into::into).collect();
        Self::sync(move |request| {
            let fits = |pattern: &&String| fits(pattern, request.path());
            patterns.iter().find(fits).map(|pattern| pattern.as_bytes().into())
        })
    }

    /// The method.
    pub fn method() -> Self {
        Self::sync(|request| Some(request.method.as_str().as_bytes().into()))
    }

    /// What an earlier layer has put into the request's extensions, such as the user.
    pub fn extension<T, K>(name: impl Fn(&T) -> K + Send + Sync + 'static) -> Self
    where
        T: Clone + Send + Sync + 'static,
        K: Into<Vec<u8>>,
    {
        Self::sync(move |request| request.extensions.get::<T>().map(|found| Name::Long(name(found).into())))
    }

    /// Whatever `find` says.
    pub fn by<K: Into<Vec<u8>>>(
        find: impl Fn(&RequestHead<'_>) -> Option<K> + Send + Sync + 'static,
    ) -> Self {
        Self::sync(move |request| find(request).map(|name| Name::Long(name.into())))
    }

    /// Whatever `find` says after some waiting.
    pub fn by_async<R, K>(find: impl Fn(&RequestHead<'_>) -> R + Send + Sync + 'static) -> Self
    where
        R: Future<Output = Option<K>> + Send + 'static,
        K: Into<Vec<u8>>,
    {
        let extract = Asked(move |request: &RequestHead<'_>| {
            let found = find(request);
            async move { found.await.map(|name| Name::Long(name.into())).filter(|name| !name.is_empty()) }
        });
        Self { extract: Arc::new(extract), is_known: false }
    }

    /// All of these together. If one of them is missing, so is the whole; of none, there is none.
    pub fn all(keys: impl IntoIterator<Item = Self>) -> Self {
        let keys: Vec<Self> = keys.into_iter().collect();
        Self { is_known: keys.iter().all(|key| key.is_known), extract: Arc::new(All(keys)) }
    }

    /// The first of these that is there.
    pub fn first_of(keys: impl IntoIterator<Item = Self>) -> Self {
        let keys: Vec<Self> = keys.into_iter().collect();
        Self { is_known: keys.iter().all(|key| key.is_known), extract: Arc::new(FirstOf(keys)) }
    }

    fn sync(find: impl Fn(&RequestHead<'_>) -> Option<Name> + Send + Sync + 'static) -> Self {
        // Who has an empty name has none.
        let find = move |request: &RequestHead<'_>| find(request).filter(|name| !name.is_empty());
        Self { extract: Arc::new(Known(find)), is_known: true }
    }

    pub(super) fn find<'a>(&'a self, request: &'a RequestHead<'a>) -> Found<'a> {
        self.extract.find(request)
    }

    /// The same, but nothing if it may have to be waited for, and then nobody has been asked.
    pub(super) fn find_now<'a>(&'a self, request: &'a RequestHead<'a>) -> Option<Found<'a>> {
        self.is_known.then(|| self.find(request))
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Key").finish_non_exhaustive()
    }
}

struct All(Vec<Key>);

impl Extract for All {
    fn find<'a>(&'a self, request: &'a RequestHead<'a>) -> Found<'a> {
        // Nothing is not a name that all have in common.
        if self.0.is_empty() {
            return Found::Now(None);
        }
        let mut joined = Vec::new();
        for (index, key) in self.0.iter().enumerate() {
            match key.find(request) {
                Found::Now(Some(name)) => join(&mut joined, &name),
                Found::Now(None) => return Found::Now(None),
                Found::Later(first) => {
                    let others = &self.0[index + 1..];
                    return Found::Later(Box::pin(async move {
                        join(&mut joined, &first.await?);
                        for key in others {
                            join(&mut joined, &key.find(request).name().await?);
                        }
                        Some(Name::Long(joined))
                    }));
                }
            }
        }
        Found::Now(Some(Name::Long(joined)))
    }
}

/// Each with its length before it, so that `a` and `bc` are not `ab` and `c`.
fn join(joined: &mut Vec<u8>, name: &[u8]) {
    joined.extend((name.len() as u64).to_be_bytes());
    joined.extend(name);
}

struct FirstOf(Vec<Key>);

impl Extract for FirstOf {
    fn find<'a>(&'a self, request: &'a RequestHead<'a>) -> Found<'a> {
        for (index, key) in self.0.iter().enumerate() {
            match key.find(request) {
                Found::Now(Some(name)) => return Found::Now(Some(numbered(index, &name))),
                Found::Now(None) => {}
                Found::Later(first) => {
                    let others = &self.0[index + 1..];
                    return Found::Later(Box::pin(async move {
                        if let Some(name) = first.await {
                            return Some(numbered(index, &name));
                        }
                        for (more, key) in others.iter().enumerate() {
                            if let Some(name) = key.find(request).name().await {
                                return Some(numbered(index + 1 + more, &name));
                            }
                        }
                        None
                    }));
                }
            }
        }
        Found::Now(None)
    }
}

/// With its place before it, so that a user called like somebody's address is not that address.
fn numbered(index: usize, name: &[u8]) -> Name {
    Name::Long([&(index as u64).to_be_bytes(), name].concat())
}

/// Whether `path` fits a pattern in which `*` stands for one segment and a `**` at the end for all that follow.
fn fits(pattern: &str, path: &str) -> bool {
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

    async fn name(key: Key, request: &http::request::Parts) -> Option<Vec<u8>> {
        Some(key.find(&request.into()).name().await?.to_vec())
    }

    fn text(text: &'static str) -> Key {
        Key::by(move |_| Some(text))
    }

    fn text_later(text: &'static str) -> Key {
        Key::by_async(move |_| async move { Some(text) })
    }

    #[tokio::test]
    async fn parts_of_a_request_name_it() {
        #[derive(Clone)]
        struct User(u8);
        let mut parts = request("/users/7?page=2");
        assert_eq!(name(Key::path(), &parts).await.unwrap(), b"/users/7");
        assert_eq!(name(Key::method(), &parts).await.unwrap(), b"GET");
        let header = |name| Key::header(HeaderName::from_static(name));
        assert_eq!(name(header("x-api-key"), &parts).await.unwrap(), b"secret");
        assert_eq!(name(header("x-other"), &parts).await, None);
        let user = || Key::extension(|user: &User| [user.0]);
        assert_eq!(name(user(), &parts).await, None);
        parts.extensions.insert(User(9));
        assert_eq!(name(user(), &parts).await.unwrap(), [9]);
        assert_eq!(name(Key::address(ClientAddress::peer()), &parts).await, None);
        parts.headers.append("x-api-key", "another".parse().unwrap());
        assert_eq!(name(header("x-api-key"), &parts).await, None, "two are one too many");
        parts.headers.insert("x-api-key", "".parse().unwrap());
        let empty_or_user = Key::first_of([header("x-api-key"), text(""), text_later(""), user()]);
        assert_eq!(name(empty_or_user, &parts).await.unwrap(), [0, 0, 0, 0, 0, 0, 0, 3, 9], "empty is none");
    }

    #[tokio::test]
    async fn what_is_joined_cannot_run_into_each_other() {
        let parts = request("/");
        let joined = |a, b| name(Key::all([text(a), text(b)]), &parts);
        assert_ne!(joined("a", "bc").await, joined("ab", "c").await);
        assert_eq!(joined("a", "bc").await, name(Key::all([text_later("a"), text("bc")]), &parts).await);
        assert_eq!(joined("a", "bc").await, name(Key::all([text("a"), text_later("bc")]), &parts).await);
        assert_eq!(name(Key::all([text("a"), Key::by(|_| None::<String>)]), &parts).await, None);
        assert_eq!(name(Key::all([]), &parts).await, None, "of none there is none");
        assert_eq!(name(Key::first_of([]), &parts).await, None);
        assert_eq!(name(Key::all([Key::all([]), text("a")]), &parts).await, None);
        assert_ne!(
            name(Key::first_of([text("a")]), &parts).await,
            name(Key::first_of([Key::by(|_| None::<String>), text("a")]), &parts).await,
            "found in another place"
        );
        let nobody = || Key::by_async(|_| async { None::<String> });
        let found = name(Key::first_of([nobody(), nobody(), text("a")]), &parts).await;
        assert_eq!(found, name(Key::first_of([nobody(), nobody(), text_later("a")]), &parts).await);
        assert!(found.is_some());
    }

    #[test]
    fn patterns_stand_for_segments() {
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
            assert_eq!(fits(pattern, path), expected, "{pattern} {path}");
        }
    }
}
