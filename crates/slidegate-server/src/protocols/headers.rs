//! Credentials and keys in the headers of a request.

use std::net::IpAddr;

use axum::http::HeaderMap;
use axum::http::header::AUTHORIZATION;
use slidegate::address::ClientAddress;
use slidegate_config::{KeyPart, KeyRule};
use slidegate_engine::Credentials;

/// Header for proxies, which forward the `Authorization` of their clients.
const TOKEN_HEADER: &str = "x-slidegate-token";

/// Returns the credentials of a request.
pub(crate) fn credentials(headers: &HeaderMap) -> Credentials<'_> {
    let mut credentials = Credentials::default();
    if let Some(value) = headers.get(AUTHORIZATION) {
        credentials.add_authorization(value.as_bytes());
    }
    if let Some(value) = headers.get(TOKEN_HEADER) {
        credentials.add_token(value.as_bytes());
    }
    credentials
}

/// Returns the key of a request that a proxy checks, or the part that the request lacks. `client` finds the client's address.
pub(crate) fn request_key<'r>(
    rule: &'r KeyRule,
    client: &ClientAddress,
    peer: Option<IpAddr>,
    headers: &HeaderMap,
) -> Result<String, &'r KeyPart> {
    rule.key(|part| match part {
        KeyPart::Address => client.find(peer, headers).map(|address| address.to_string()),
        KeyPart::Header(name) => {
            let mut values = headers.get_all(name).iter();
            // With two values, the application may have authenticated the other one.
            let only = values.next().filter(|_| values.next().is_none())?;
            only.to_str().ok().filter(|value| !value.is_empty()).map(str::to_owned)
        }
    })
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderName;
    use slidegate_config::MAX_KEY_BYTES;

    use super::*;

    fn header(name: &'static str) -> KeyPart {
        KeyPart::Header(HeaderName::from_static(name))
    }

    fn headers(lines: &[(&'static str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(*name, value.parse().unwrap());
        }
        headers
    }

    #[test]
    fn a_key_consists_of_the_parts_in_the_request() {
        let peer = Some("203.0.113.7".parse().unwrap());
        let find = |parts: &[KeyPart], lines: &[(&'static str, &str)]| {
            let rule = KeyRule::from_parts(parts.to_vec()).unwrap();
            request_key(&rule, &ClientAddress::peer(), peer, &headers(lines)).map_err(ToString::to_string)
        };
        let key = ("x-api-key", "secret");
        assert_eq!(find(&[KeyPart::Address], &[]).unwrap(), "203.0.113.7");
        assert_eq!(find(&[header("x-api-key")], &[key]).unwrap(), "secret");
        assert_eq!(
            find(&[header("x-api-key"), KeyPart::Address], &[key]).unwrap(),
            "6:secret,11:203.0.113.7"
        );
        assert_eq!(find(&[KeyPart::Address, header("x-api-key")], &[]), Err("header x-api-key".to_owned()));
        for lines in [&[key, key][..], &[("x-api-key", "")], &[("x-api-key", "größe")]] {
            assert!(find(&[header("x-api-key")], lines).is_err(), "{lines:?}");
        }
        assert_eq!(KeyRule::from_parts(Vec::new()), None);
        let by_address = KeyRule::address();
        assert_eq!(
            request_key(&by_address, &ClientAddress::peer(), None, &HeaderMap::new()),
            Err(&KeyPart::Address)
        );
    }

    #[test]
    fn a_key_that_is_too_long_is_hashed() {
        let long = "x".repeat(MAX_KEY_BYTES);
        let longer = format!("{long}x");
        let find = |parts: &[&'static str], value: &str| {
            let rule = KeyRule::from_parts(parts.iter().map(|name| header(name)).collect()).unwrap();
            let lines: Vec<_> = parts.iter().map(|name| (*name, value)).collect();
            request_key(&rule, &ClientAddress::peer(), None, &headers(&lines)).unwrap()
        };
        assert_eq!(find(&["x-a"], &long), long);
        let keys =
            [find(&["x-a"], &longer), find(&["x-a"], &format!("{long}y")), find(&["x-a", "x-b"], &long)];
        assert!(keys.iter().all(|key| key.starts_with('…') && key.len() < 80), "{keys:?}");
        assert!(keys[0] != keys[1] && keys[0] != keys[2], "{keys:?}");
        assert_eq!(find(&["x-a"], &longer), keys[0]);
    }

    #[test]
    fn no_two_lists_of_parts_form_the_same_key() {
        let rule = KeyRule::from_parts(vec![header("x-a"), header("x-b")]).unwrap();
        let find = |a: &str, b: &str| {
            request_key(&rule, &ClientAddress::peer(), None, &headers(&[("x-a", a), ("x-b", b)])).unwrap()
        };
        assert_ne!(find("a", "bc"), find("ab", "c"));
        assert_ne!(find("1:a,1", "b"), find("1:a", "1,1:b"));
    }
}
