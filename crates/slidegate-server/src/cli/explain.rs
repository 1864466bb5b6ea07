//! Requests that `slidegate validate --explain` resolves.

use std::net::IpAddr;

use axum::http::{HeaderMap, HeaderName, HeaderValue};
use serde_json::Value;
use slidegate::address::ClientAddress;
use slidegate_config::{Config, KeyPart, KeyRule};
use slidegate_engine::{Policies, Rejection, UncheckedRequest, explain, parse_json};

use crate::protocols::headers::request_key;
use crate::protocols::http::RequestJson;

/// Client of a forward-auth request, instead of a key.
struct ProxiedClient {
    peer: Option<IpAddr>,
    headers: HeaderMap,
}

/// Explains how a configuration resolves a request, with one line per step. The request is a body of `/v1/check`. Instead of
/// the key, it can contain the `peer` and the `headers` of a forward-auth request, from which the policy derives the key.
pub(super) fn explain_body(config: &Config, body: &str) -> Result<String, Rejection> {
    let mut body: Value = parse_json(body)?;
    let client = take_client(&mut body)?;
    let body = body.to_string();
    let RequestJson(mut request) = parse_json(&body).map_err(with_own_fields)?;
    let policies = Policies::from(&config.policies);
    let key_origin = match client {
        Some(client) => {
            let (key, origin) = derive_key(&policies, &request, &client)?;
            request.key = Some(key.into());
            origin
        }
        None => "from the request".to_owned(),
    };
    explain(config, &policies, &request, &key_origin)
}

/// Adds the fields that only this command accepts to the list of known fields in an error.
fn with_own_fields(rejection: Rejection) -> Rejection {
    let is_outermost = rejection.field.as_ref().is_some_and(|field| !field.contains(['.', '[']));
    if is_outermost && rejection.detail.starts_with("unknown field") {
        return Rejection { detail: rejection.detail + ", `peer`, `headers`", ..rejection };
    }
    rejection
}

/// Removes `peer` and `headers` from the request and parses them.
fn take_client(body: &mut Value) -> Result<Option<ProxiedClient>, Rejection> {
    let Some(fields) = body.as_object_mut() else { return Ok(None) };
    let (peer, headers) = (fields.remove("peer"), fields.remove("headers"));
    if peer.is_none() && headers.is_none() {
        return Ok(None);
    }
    if fields.contains_key("key") {
        return Err(Rejection::out_of_range("key", "give either key, or peer and headers"));
    }
    let peer = peer.map(|peer| {
        let address = peer.as_str().and_then(|text| text.parse().ok());
        address.ok_or_else(|| Rejection::out_of_range("peer", "not an address, such as 203.0.113.7"))
    });
    Ok(Some(ProxiedClient { peer: peer.transpose()?, headers: parse_headers(headers.as_ref())? }))
}

fn parse_headers(fields: Option<&Value>) -> Result<HeaderMap, Rejection> {
    let invalid = |detail: String| Rejection::out_of_range("headers", detail);
    let mut headers = HeaderMap::new();
    let Some(fields) = fields else { return Ok(headers) };
    let fields = fields.as_object().ok_or_else(|| invalid("not an object of names and values".to_owned()))?;
    for (name, values) in fields {
        let header = HeaderName::try_from(name).map_err(|_| invalid(format!("{name:?} is not a name")))?;
        let values = values.as_array().map_or_else(|| std::slice::from_ref(values), Vec::as_slice);
        for value in values {
            let value = value.as_str().and_then(|value| HeaderValue::from_str(value).ok());
            let value = value.ok_or_else(|| invalid(format!("{name}: not a value, or a list of values")))?;
            headers.append(header.clone(), value);
        }
    }
    Ok(headers)
}

/// Returns the key of a forward-auth request and its origin.
fn derive_key(
    policies: &Policies,
    request: &UncheckedRequest<'_>,
    client: &ProxiedClient,
) -> Result<(String, String), Rejection> {
    let Some(name) = &request.policy else {
        return Err(Rejection::out_of_range("policy", "missing; peer and headers require a policy"));
    };
    let by_address = KeyRule::address();
    let configured = policies.key_rule(name)?;
    let rule = configured.unwrap_or(&by_address);
    let key = request_key(rule, policies.client(), client.peer, &client.headers).map_err(|part| {
        Rejection::out_of_range("key", format!("derived from {rule}; the request needs exactly one {part}"))
    })?;
    let mut origin = format!("derived from {rule}");
    if configured.is_none() {
        origin.push_str(", the default of a policy without key");
    }
    if rule.parts().contains(&KeyPart::Address) {
        let is_peer = policies.client().find(client.peer, &client.headers)
            == ClientAddress::peer().find(client.peer, &client.headers);
        let is_trusted = client.peer.is_some_and(|peer| policies.client().trusts(peer));
        origin.push_str(if is_peer && !is_trusted && client.headers.contains_key("x-forwarded-for") {
            "; the address is that of the peer, whose X-Forwarded-For is ignored because it is not in trusted_proxies"
        } else if is_peer {
            "; the address is that of the peer"
        } else {
            "; the address is from X-Forwarded-For, because the peer is a trusted proxy"
        });
    }
    Ok((key, origin))
}
