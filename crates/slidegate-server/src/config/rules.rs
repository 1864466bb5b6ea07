//! What the file says about single policies beside their quotas: headers, keys, and keys that are treated otherwise.

use std::fmt;
use std::net::IpAddr;

use axum::http::HeaderName;
use ipnet::IpNet;
use serde::Deserialize;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_saphyr::Spanned;
use slidegate::Policy;
use slidegate::tower::ClientAddress;

use super::build::{line_of, policy};
use super::file::{Entries, Quotas};
use super::problem::Problem;
use crate::app::MAX_KEY_BYTES;
use crate::key_rule::{KeyPart, KeyRule};
use crate::policies::Override;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct OverrideFields {
    quotas: Option<Quotas>,
    tier: Option<Spanned<String>>,
}

/// Who is believed about addresses.
pub(super) fn client(networks: Option<&Vec<Spanned<String>>>, problems: &mut Vec<Problem>) -> ClientAddress {
    let mut proxies = Vec::new();
    for (index, text) in networks.into_iter().flatten().enumerate() {
        let network = text.value.parse::<IpNet>().ok();
        match network.or_else(|| text.value.parse::<IpAddr>().ok().map(IpNet::from)) {
            Some(network) => proxies.push(network),
            None => {
                let message = format!(
                    "{:?} is not a network: write ADDRESS/BITS, such as 10.0.0.0/8, or ADDRESS",
                    text.value
                );
                problems.push(Problem::at(line_of(text), format!("trusted_proxies[{index}]"), message));
            }
        }
    }
    ClientAddress::behind(proxies)
}

pub(super) fn overrides(
    path: &str,
    name: &str,
    entries: Option<&Entries<Spanned<OverrideFields>>>,
    tiers: &[(String, Policy)],
    problems: &mut Vec<Problem>,
) -> Vec<(String, Override)> {
    let mut overrides = Vec::new();
    for (key, spanned) in entries.iter().flat_map(|entries| &entries.0) {
        let (path, line) = (format!("{path}.overrides.{key}"), line_of(spanned));
        if !(1..=MAX_KEY_BYTES).contains(&key.len()) {
            let message = format!("a key has 1 to {MAX_KEY_BYTES} bytes, not {}", key.len());
            problems.push(Problem::at(line, path.as_str(), message));
        }
        match (&spanned.value.quotas, &spanned.value.tier) {
            (Some(quotas), None) => {
                let policy = policy(name, &path, quotas, problems);
                overrides.extend(policy.map(|policy| (key.clone(), Override::Quotas(policy))));
            }
            (None, Some(tier)) if tiers.iter().any(|(name, _)| *name == tier.value) => {
                overrides.push((key.clone(), Override::Tier(tier.value.clone())));
            }
            (None, Some(tier)) => {
                let message = format!("the policy has no tier {:?}", tier.value);
                problems.push(Problem::at(line_of(tier), format!("{path}.tier"), message));
            }
            _ => problems.push(Problem::at(line, path, "give exactly one of quotas and tier")),
        }
    }
    overrides
}

/// What a key is made of, as it is written.
#[derive(Debug)]
pub(super) struct KeySpec(Vec<Result<KeyPart, String>>);

pub(super) fn key(
    path: &str,
    spec: Option<&Spanned<KeySpec>>,
    problems: &mut Vec<Problem>,
) -> Option<KeyRule> {
    let spec = spec?;
    let mut parts = Vec::new();
    for part in &spec.value.0 {
        match part {
            Ok(part) => parts.push(part.clone()),
            Err(message) => {
                problems.push(Problem::at(line_of(spec), format!("{path}.key"), message.as_str()));
            }
        }
    }
    if spec.value.0.is_empty() {
        problems.push(Problem::at(
            line_of(spec),
            format!("{path}.key"),
            "none given; at least one is needed",
        ));
    }
    KeyRule::of(parts)
}

impl<'de> Deserialize<'de> for KeySpec {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(KeyVisitor)
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct HeaderFields {
    header: String,
}

struct KeyVisitor;

impl<'de> Visitor<'de> for KeyVisitor {
    type Value = KeySpec;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("address, a mapping with header, or a list of these")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<KeySpec, E> {
        Ok(KeySpec(vec![match text {
            "address" => Ok(KeyPart::Address),
            other => Err(format!("{other:?} is neither address nor a mapping such as {{header: X-Api-Key}}")),
        }]))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<KeySpec, A::Error> {
        let HeaderFields { header } = HeaderFields::deserialize(MapAccessDeserializer::new(map))?;
        let name = HeaderName::try_from(&header);
        Ok(KeySpec(vec![
            name.map(KeyPart::Header).map_err(|_| format!("{header:?} is not the name of a header")),
        ]))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<KeySpec, A::Error> {
        let mut parts = Vec::new();
        while let Some(KeySpec(part)) = items.next_element()? {
            parts.extend(part);
        }
        Ok(KeySpec(parts))
    }
}
