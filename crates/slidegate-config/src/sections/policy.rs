//! Section `policies`: one policy.

use std::collections::BTreeSet;

use slidegate::headers::HeaderStyle;
use slidegate::resilience::{Mode, OnFailure, PolicySwitch};

use crate::MAX_KEY_BYTES;
use crate::fields::containers::{ListItems, ListOf, MapEntry, MapOf, Mapping};
use crate::fields::diagnostics::Diagnostics;
use crate::fields::field::{Field, Fields};
use crate::fields::scalars::{Boolean, Keyword, OneOf, Text, Time};
use crate::key_rule::KeyRule;
use crate::policy_set::{Override, PolicyEntry, listed};
use crate::quota_spec::NamedQuota;
use crate::sections::degrade::DegradeOverride;
use crate::sections::key::KeyKind;
use crate::sections::quota::{QUOTAS, QuotaKind, policy};

const OWN_QUOTAS: Field<ListOf<QuotaKind>> =
    Field::new("quotas", QUOTAS, "Quotas that each request spends together, or not at all.").required();
const TIERS: Field<MapOf<Mapping<Quotas>>> = Field::new(
    "tiers",
    MapOf { value: TIER, noun: "the name of a tier", step: ".TIER" },
    "Alternative quotas over the same counts, for requests that name the tier.",
)
.with_described_default("none");
const OVERRIDES: Field<MapOf<Mapping<OverrideSpec>>> = Field::new(
    "overrides",
    MapOf { value: OVERRIDE, noun: "key", step: ".KEY" },
    "Quotas or tier of single keys; they take precedence over the tier that a request names.",
)
.with_described_default("none");
pub(crate) const HEADERS: Field<OneOf<HeaderStyle>> = Field::new(
    "headers",
    OneOf::ANY,
    "Rate-limit headers in responses to single requests: those of the IETF draft (ietf), X-RateLimit-* with the reset \
     in seconds since 1970 (legacy-epoch) or from now (legacy-delta), or none.",
).with_described_default("the top-level `headers`");
const KEY: Field<KeyKind> = Field::new(
    "key",
    KeyKind,
    "Key of requests that a proxy checks by forward-auth: address, {header: NAME}, or a list of these combined.",
).with_described_default("the client's address");
const OWN_ON_FAILURE: Field<OneOf<OnFailure>> =
    Field::new("on_failure", OneOf::ANY, "Decision for its requests that the store does not decide.")
        .with_described_default("that of `degrade`");
const OWN_BUDGET: Field<Time> =
    Field::new("budget", Time::UP_TO_A_MINUTE, "Time that a store call for it may take.")
        .with_described_default("that of `degrade`");
const OWN_RETRY_JITTER: Field<Time> = Field::new(
    "retry_jitter",
    Time::UP_TO_A_MINUTE.or_none(),
    "Maximum random time added to the retry time of its denials.",
)
.with_described_default("that of `degrade`");
const OWN_CACHE_DENIALS: Field<Boolean> =
    Field::new("cache_denials", Boolean, "Whether this server caches its denials until they end.")
        .with_described_default("that of `degrade`");
const MODE: Field<OneOf<Mode>> = Field::new(
    "mode",
    OneOf::ANY,
    "Use of its decisions: enforce applies them, shadow only reports them, off makes none.",
)
.with_default("enforce");
const ALLOW: Field<ListOf<Text>> =
    Field::new("allow", KEYS, "Keys that are always allowed, without being counted.")
        .with_described_default("none");
const DENY: Field<ListOf<Text>> =
    Field::new("deny", KEYS, "Keys that are always denied.").with_described_default("none");
const CANDIDATE: Field<ListOf<QuotaKind>> = Field::new(
    "candidate",
    QUOTAS,
    "Alternative quotas that are evaluated beside its own, without being enforced.",
)
.with_described_default("none");

const KEYS: ListOf<Text> = ListOf { item: Text { noun: "a key" }, noun: "keys", max_items: None };

pub(crate) const POLICY: Mapping<PolicySpec> = Mapping {
    fields: &[
        &OWN_QUOTAS,
        &TIERS,
        &OVERRIDES,
        &HEADERS,
        &KEY,
        &OWN_ON_FAILURE,
        &OWN_BUDGET,
        &OWN_RETRY_JITTER,
        &OWN_CACHE_DENIALS,
        &MODE,
        &ALLOW,
        &DENY,
        &CANDIDATE,
    ],
    one_of: &[],
    read: |fields, diagnostics| Some(spec(fields, diagnostics)),
};

type Quotas = Option<ListItems<NamedQuota>>;

const TIER: Mapping<Quotas> = Mapping {
    fields: &[&OWN_QUOTAS],
    one_of: &[],
    read: |fields, diagnostics| Some(fields.get(&OWN_QUOTAS, diagnostics)),
};

const OTHER_QUOTAS: Field<ListOf<QuotaKind>> = Field::new("quotas", QUOTAS, "Quotas of the key.");
const OTHER_TIER: Field<Text> =
    Field::new("tier", Text { noun: "the name of a tier" }, "Tier of the policy that applies to the key.");

const OVERRIDE: Mapping<OverrideSpec> =
    Mapping { fields: &[&OTHER_QUOTAS, &OTHER_TIER], one_of: &["quotas", "tier"], read: override_spec };

/// Override of a key as the file writes it.
pub(crate) enum OverrideSpec {
    Quotas(ListItems<NamedQuota>),
    Tier { name: String, line: u64 },
}

/// Policy as the file writes it, without its name.
pub(crate) struct PolicySpec {
    quotas: Quotas,
    tiers: Vec<MapEntry<Quotas>>,
    overrides: Vec<MapEntry<OverrideSpec>>,
    headers: Option<HeaderStyle>,
    key: Option<KeyRule>,
    pub(crate) degrade: DegradeOverride,
    switch: Option<PolicySwitch>,
    candidate: Quotas,
}

fn spec(fields: &Fields<'_>, diagnostics: &mut Diagnostics) -> PolicySpec {
    let quotas = fields.get(&OWN_QUOTAS, diagnostics);
    let tiers = fields.get(&TIERS, diagnostics).unwrap_or_default();
    let overrides = fields.get(&OVERRIDES, diagnostics).unwrap_or_default();
    let headers = fields.get(&HEADERS, diagnostics);
    let key = fields.get(&KEY, diagnostics);
    let degrade = DegradeOverride {
        on_failure: fields.get(&OWN_ON_FAILURE, diagnostics),
        budget: fields.get(&OWN_BUDGET, diagnostics),
        retry_jitter: fields.get(&OWN_RETRY_JITTER, diagnostics),
        cache_denials: fields.get(&OWN_CACHE_DENIALS, diagnostics),
    };
    let switch = switch(fields, diagnostics);
    let candidate = fields.get(&CANDIDATE, diagnostics);
    PolicySpec { quotas, tiers, overrides, headers, key, degrade, switch, candidate }
}

/// Reads the mode, the lists and the presence of a candidate. Returns `None` if the policy has none of these.
fn switch(fields: &Fields<'_>, diagnostics: &mut Diagnostics) -> Option<PolicySwitch> {
    let mode = fields.get(&MODE, diagnostics);
    let mut keys = |field| fields.get(field, diagnostics).map(ListItems::into_values);
    let (allow, deny) = (keys(&ALLOW), keys(&DENY));
    if mode.is_none() && allow.is_none() && deny.is_none() && !fields.has(&CANDIDATE) {
        return None;
    }
    let bytes = |keys: Option<Vec<String>>| keys.into_iter().flatten().map(String::into_bytes).collect();
    let mut switch = PolicySwitch::default();
    switch.mode = mode.unwrap_or_default();
    switch.allowed_keys = bytes(allow);
    switch.denied_keys = bytes(deny);
    Some(switch)
}

fn override_spec(fields: &Fields<'_>, diagnostics: &mut Diagnostics) -> Option<OverrideSpec> {
    let (quotas, tier) = (fields.get(&OTHER_QUOTAS, diagnostics), fields.get(&OTHER_TIER, diagnostics));
    match (fields.has(&OTHER_QUOTAS), fields.has(&OTHER_TIER)) {
        (true, false) => quotas.map(OverrideSpec::Quotas),
        (false, true) => tier.map(|name| OverrideSpec::Tier { name, line: fields.line_of("tier") }),
        _ => None,
    }
}

impl PolicySpec {
    /// Builds the policy `name` and its switch. The policy is `None` if its quotas are invalid.
    pub(crate) fn build(
        self,
        name: &str,
        path: &str,
        diagnostics: &mut Diagnostics,
    ) -> (Option<PolicyEntry>, Option<PolicySwitch>) {
        let standard = self.quotas.and_then(|quotas| policy(name, path, quotas, diagnostics));
        let tier_names: BTreeSet<String> = self.tiers.iter().map(|tier| tier.name.clone()).collect();
        let mut tiers = Vec::new();
        for tier in self.tiers {
            let quotas = tier.value.flatten();
            let policy = quotas.and_then(|quotas| policy(name, &tier.path, quotas, diagnostics));
            tiers.extend(policy.map(|policy| (tier.name, policy)));
        }
        let mut overrides = Vec::new();
        for entry in self.overrides {
            if !(1..=MAX_KEY_BYTES).contains(&entry.name.len()) {
                let message = format!("a key has 1 to {MAX_KEY_BYTES} bytes, not {}", entry.name.len());
                diagnostics.report(entry.line, entry.path.as_str(), message);
            }
            let Some(spec) = entry.value else { continue };
            let replacement = spec.build(name, &entry.path, &tier_names, diagnostics);
            overrides.extend(replacement.map(|replacement| (entry.name, replacement)));
        }
        let mut switch = self.switch;
        if let (Some(switch), Some(candidate)) = (&mut switch, self.candidate) {
            set_candidate(switch, name, path, candidate, diagnostics);
        }
        let (headers, key) = (self.headers, self.key);
        let entry =
            standard.map(|policy| PolicyEntry { policy, tiers, overrides, headers, key, labels: None });
        (entry, switch)
    }
}

impl OverrideSpec {
    fn build(
        self,
        name: &str,
        path: &str,
        tiers: &BTreeSet<String>,
        diagnostics: &mut Diagnostics,
    ) -> Option<Override> {
        match self {
            Self::Quotas(quotas) => policy(name, path, quotas, diagnostics).map(Override::Quotas),
            Self::Tier { name: tier, line } => {
                if tiers.contains(&tier) {
                    return Some(Override::Tier(tier));
                }
                let message = format!(
                    "the policy has no tier {tier:?}; known: {}",
                    listed(tiers.iter().map(String::as_str))
                );
                diagnostics.report(line, format!("{path}.tier"), message);
                None
            }
        }
    }
}

fn set_candidate(
    switch: &mut PolicySwitch,
    name: &str,
    path: &str,
    candidate: ListItems<NamedQuota>,
    diagnostics: &mut Diagnostics,
) {
    let ListItems { line, is_complete: true, .. } = candidate else { return };
    let quotas = candidate.into_values().into_iter().map(|named| named.quota);
    if let Err(error) = switch.set_candidate(name, quotas) {
        diagnostics.report(line, format!("{path}.candidate"), error.message());
    }
}

impl Keyword for HeaderStyle {
    fn all() -> impl Iterator<Item = (&'static str, Self)> {
        [
            ("ietf", Self::Draft),
            ("legacy-epoch", Self::LegacyEpoch),
            ("legacy-delta", Self::LegacyDelta),
            ("none", Self::None),
        ]
        .into_iter()
    }
}
