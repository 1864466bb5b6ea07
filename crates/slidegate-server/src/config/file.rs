//! The whole file.

use slidegate::tower::{ClientAddress, HeaderStyle};

use super::address::Address;
use super::admin::AdminKind;
use super::containers::{ByName, ListOf, Listed, Mapping, Named};
use super::degrade::{DEGRADE, DegradeConfig};
use super::door::{LIMITS, LOG, TLS};
use super::envoy::{ENVOY, EnvoyConfig};
use super::field::{Declarations, Field, Fields};
use super::key::{NETWORKS, Network};
use super::kinds::{OneOf, Parsed};
use super::listen::{LISTEN, Listen};
use super::memory::MEMORY;
use super::policy::{HEADERS as POLICY_HEADERS, POLICY, PolicySpec};
use super::problem::Problem;
use super::review::Review;
use super::store_url::StoreUrl;
use super::token::{Secret, TOKENS, tokens};
use super::{Config, MemoryConfig, tree};
use crate::policies::Policies;
use crate::serve::{Limits, TlsFiles};
use crate::violations::ViolationLog;

const HTTP: Field<Parsed<Address>> = Field::new(
    "http",
    Parsed::new("an address", "^.+:[0-9]{1,5}$"),
    "Where to serve HTTP; port 0 picks a free one.",
)
.usual("127.0.0.1:8080");
const GRPC: Field<Parsed<Listen>> =
    Field::new("grpc", LISTEN, "Where to serve gRPC, or off.").usual("127.0.0.1:8081");
const RESP: Field<Parsed<Listen>> =
    Field::new("resp", LISTEN, "Where to serve the protocol of Redis, or off.").usual("off");
const ADMIN: Field<AdminKind> =
    Field::new("admin", AdminKind, "The listener for those who look after the service.")
        .usual("127.0.0.1:8082");
const ALL_TOKENS: Field<ListOf<Mapping<Secret>>> = Field::new(
    "tokens",
    TOKENS,
    "Who may ask for decisions, by Authorization: Bearer TOKEN. Without any, anyone may.",
)
.otherwise("anyone may ask");
const HEADERS: Field<OneOf<HeaderStyle>> = POLICY_HEADERS.usual("ietf");
const TRUSTED_PROXIES: Field<ListOf<Parsed<Network>>> = Field::new(
    "trusted_proxies",
    NETWORKS,
    "Whose X-Forwarded-For is believed: a client's address is the first from the right that is in none of them.",
).otherwise("nobody's");
const STORE: Field<Parsed<StoreUrl>> = Field::new(
    "store",
    Parsed::new(
        "the URL of a store",
        "^(memory:?|(redis|rediss|valkey|valkeys|postgres|postgresql)(\\+[a-z]+)?:.*)$",
    ),
    "Where counts are kept: memory, redis://HOST:PORT and its relatives, postgres://HOST:PORT/DATABASE.",
)
.usual("memory");
const LIMITS_FIELD: Field<Mapping<Limits>> = Field::new("limits", LIMITS, "What connections may take.");
const TLS_FIELD: Field<Mapping<TlsFiles>> =
    Field::new("tls", TLS, "Certificates; with them, TLS is served and nothing else.");
const LOG_FIELD: Field<Mapping<ViolationLog>> = Field::new("log", LOG, "Which denials are logged, and how.");
const MEMORY_FIELD: Field<Mapping<MemoryConfig>> =
    Field::new("memory", MEMORY, "The memory store, and what is counted in memory when another store fails.");
const DEGRADE_FIELD: Field<Mapping<DegradeConfig>> =
    Field::new("degrade", DEGRADE, "What is done when a store that is elsewhere fails.");
const ENVOY_FIELD: Field<Mapping<EnvoyConfig>> =
    Field::new("envoy", ENVOY, "Limits of envoyproxy/ratelimit, which are served over gRPC.");
const POLICIES: Field<ByName<Mapping<PolicySpec>>> = Field::new(
    "policies",
    ByName { each: POLICY, what: "the name of a policy", step: ".POLICY" },
    "The policies that requests may name.",
);

/// Everything that may stand in the file.
pub(super) const FIELDS: Declarations = &[
    &HTTP,
    &GRPC,
    &RESP,
    &ADMIN,
    &ALL_TOKENS,
    &HEADERS,
    &TRUSTED_PROXIES,
    &STORE,
    &LIMITS_FIELD,
    &TLS_FIELD,
    &LOG_FIELD,
    &MEMORY_FIELD,
    &DEGRADE_FIELD,
    &ENVOY_FIELD,
    &POLICIES,
];

/// What the text of a file says, or everything that is wrong with it.
pub(super) fn parse(text: &str, looks_around: bool) -> Result<Config, Vec<Problem>> {
    let Some(root) = tree::parse(text).map_err(|problem| vec![problem])?.filter(|root| !root.is_nothing())
    else {
        return Ok(Config::default());
    };
    let mut review = Review::new(looks_around);
    let config = Fields::open(&root, "", FIELDS, &mut review).map(|fields| config(&fields, &mut review));
    let problems = review.into_problems();
    match config {
        Some(config) if problems.is_empty() => Ok(config),
        _ => Err(problems),
    }
}

fn config(fields: &Fields<'_>, review: &mut Review) -> Config {
    let headers = fields.get(&HEADERS, review).unwrap_or_default();
    let proxies = fields.get(&TRUSTED_PROXIES, review).map(Listed::into_values).unwrap_or_default();
    let client = ClientAddress::behind(proxies.into_iter().map(|Network(network)| network));
    let mut degrade = fields.get(&DEGRADE_FIELD, review).unwrap_or_default();
    let mut policies = Policies::new(headers, client);
    for Named { name, path, value, .. } in fields.get(&POLICIES, review).unwrap_or_default() {
        let Some(spec) = value else { continue };
        degrade.rules.insert(name.clone(), spec.rule);
        let (entry, switch) = spec.build(&name, &path, review);
        degrade.switches.extend(switch.map(|switch| (name, switch)));
        if let Some(entry) = entry {
            policies.insert(entry);
        }
    }
    let secrets = fields.get(&ALL_TOKENS, review);
    Config {
        http: fields.get(&HTTP, review),
        grpc: fields.get(&GRPC, review),
        resp: fields.get(&RESP, review),
        admin: fields.get(&ADMIN, review).unwrap_or_default(),
        tokens: secrets.map(|secrets| tokens(secrets, review)).unwrap_or_default(),
        store: fields.get(&STORE, review),
        limits: fields.get(&LIMITS_FIELD, review).unwrap_or_default(),
        tls: fields.get(&TLS_FIELD, review),
        log: fields.get(&LOG_FIELD, review).unwrap_or_default(),
        memory: fields.get(&MEMORY_FIELD, review).unwrap_or_default(),
        degrade,
        envoy: fields.get(&ENVOY_FIELD, review),
        policies,
        // After all who may have one.
        token_files: std::mem::take(&mut review.token_files),
    }
}
