//! Top-level fields of the file.

use slidegate::address::ClientAddress;
use slidegate::headers::HeaderStyle;
use slidegate::store::StoreUrl;

use crate::fields::containers::{ListItems, ListOf, MapEntry, MapOf, Mapping};
use crate::fields::diagnostics::Diagnostics;
use crate::fields::field::{Field, FieldList, Fields};
use crate::fields::scalars::{OneOf, Parsed};
use crate::fields::tree::{self, Tags};
use crate::policy_set::PolicySet;
use crate::problem::Problem;
use crate::sections::address::Address;
use crate::sections::admin::AdminKind;
use crate::sections::connections::{LIMITS, LOG, Limits, TLS, ViolationLog};
use crate::sections::degrade::{DEGRADE, DegradeConfig};
use crate::sections::envoy::{ENVOY, EnvoyConfig};
use crate::sections::key::{NETWORKS, Network};
use crate::sections::listen::{LISTEN, Listen};
use crate::sections::memory::MEMORY;
use crate::sections::policy::{HEADERS as POLICY_HEADERS, POLICY, PolicySpec};
use crate::sections::token::{TOKENS, TokenSpec, tokens};
use crate::tls::TlsFiles;
use crate::{Config, MemoryConfig};

const HTTP: Field<Parsed<Address>> = Field::new(
    "http",
    Parsed::new("an address", "^.+:[0-9]{1,5}$"),
    "Address of the HTTP listener; port 0 picks a free port.",
)
.with_default("127.0.0.1:8080");
const GRPC: Field<Parsed<Listen>> =
    Field::new("grpc", LISTEN, "Address of the gRPC listener, or off.").with_default("127.0.0.1:8081");
const RESP: Field<Parsed<Listen>> =
    Field::new("resp", LISTEN, "Address of the listener for the Redis protocol (RESP), or off.")
        .with_default("off");
const ADMIN: Field<AdminKind> =
    Field::new("admin", AdminKind, "Listener of the admin API.").with_default("127.0.0.1:8082");
const ALL_TOKENS: Field<ListOf<Mapping<TokenSpec>>> = Field::new(
    "tokens",
    TOKENS,
    "Tokens of clients, sent as Authorization: Bearer TOKEN. Without tokens, every client may request decisions.",
)
.with_described_default("no token is required");
const HEADERS: Field<OneOf<HeaderStyle>> = POLICY_HEADERS.with_default("ietf");
const TRUSTED_PROXIES: Field<ListOf<Parsed<Network>>> = Field::new(
    "trusted_proxies",
    NETWORKS,
    "Networks of proxies whose X-Forwarded-For is trusted: the client's address is the first from the right that is in \
     none of these networks.",
).with_described_default("no proxy is trusted");
const STORE: Field<Parsed<StoreUrl>> = Field::new(
    "store",
    Parsed::new(
        "a store URL",
        "^(memory:?|(redis|rediss|valkey|valkeys|postgres|postgresql)(\\+[a-z]+)?:.*)$",
    ),
    "Store of the counts: memory, redis://HOST:PORT or a related scheme, postgres://HOST:PORT/DATABASE.",
)
.with_default("memory");
const LIMITS_FIELD: Field<Mapping<Limits>> = Field::new("limits", LIMITS, "Limits of connections.");
const TLS_FIELD: Field<Mapping<TlsFiles>> =
    Field::new("tls", TLS, "Certificates; with them, the listeners accept TLS only.");
const LOG_FIELD: Field<Mapping<ViolationLog>> = Field::new("log", LOG, "Log of denials.");
const MEMORY_FIELD: Field<Mapping<MemoryConfig>> =
    Field::new("memory", MEMORY, "Size of the memory store, which also counts while another store fails.");
const DEGRADE_FIELD: Field<Mapping<DegradeConfig>> =
    Field::new("degrade", DEGRADE, "Behaviour when a remote store fails.");
const ENVOY_FIELD: Field<Mapping<EnvoyConfig>> =
    Field::new("envoy", ENVOY, "Limits of envoyproxy/ratelimit, served over gRPC.");
const POLICIES: Field<MapOf<Mapping<PolicySpec>>> = Field::new(
    "policies",
    MapOf { value: POLICY, noun: "the name of a policy", step: ".POLICY" },
    "Policies that requests may name.",
);

/// All top-level fields.
pub(crate) const FIELDS: FieldList = &[
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

/// Parses the text of a file, or returns all problems.
pub(crate) fn parse(text: &str, follows_references: bool) -> Result<Config, Vec<Problem>> {
    let Some(root) =
        tree::parse(text, Tags::Rejected).map_err(|problem| vec![problem])?.filter(|root| !root.is_null())
    else {
        return Ok(Config::default());
    };
    let mut diagnostics = Diagnostics::new(follows_references);
    let config =
        Fields::open(&root, "", FIELDS, &mut diagnostics).map(|fields| config(&fields, &mut diagnostics));
    let problems = diagnostics.into_problems();
    match config {
        Some(config) if problems.is_empty() => Ok(config),
        _ => Err(problems),
    }
}

fn config(fields: &Fields<'_>, diagnostics: &mut Diagnostics) -> Config {
    let headers = fields.get(&HEADERS, diagnostics).unwrap_or_default();
    let proxies = fields.get(&TRUSTED_PROXIES, diagnostics).map(ListItems::into_values).unwrap_or_default();
    let client = ClientAddress::behind(proxies.into_iter().map(|Network(network)| network));
    let mut degrade = fields.get(&DEGRADE_FIELD, diagnostics).unwrap_or_default();
    let mut policies = PolicySet::new(headers, client);
    for MapEntry { name, path, value, .. } in fields.get(&POLICIES, diagnostics).unwrap_or_default() {
        let Some(spec) = value else { continue };
        degrade.overrides.insert(name.clone(), spec.degrade);
        let (entry, switch) = spec.build(&name, &path, diagnostics);
        degrade.switches.extend(switch.map(|switch| (name, switch)));
        if let Some(entry) = entry {
            policies.insert(entry);
        }
    }
    let specs = fields.get(&ALL_TOKENS, diagnostics);
    Config {
        http: fields.get(&HTTP, diagnostics),
        grpc: fields.get(&GRPC, diagnostics),
        resp: fields.get(&RESP, diagnostics),
        admin: fields.get(&ADMIN, diagnostics).unwrap_or_default(),
        tokens: specs.map(|specs| tokens(specs, diagnostics)).unwrap_or_default(),
        store: fields.get(&STORE, diagnostics),
        limits: fields.get(&LIMITS_FIELD, diagnostics).unwrap_or_default(),
        tls: fields.get(&TLS_FIELD, diagnostics),
        log: fields.get(&LOG_FIELD, diagnostics).unwrap_or_default(),
        memory: fields.get(&MEMORY_FIELD, diagnostics).unwrap_or_default(),
        degrade,
        envoy: fields.get(&ENVOY_FIELD, diagnostics),
        policies,
        // Last, because reading `admin` and `tokens` above adds to it.
        token_files: std::mem::take(&mut diagnostics.token_files),
    }
}
