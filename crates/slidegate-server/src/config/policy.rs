//! A policy in the file.

use std::collections::BTreeSet;

use slidegate::resilience::{Mode, OnFailure, PolicySwitch};
use slidegate::tower::HeaderStyle;

use super::containers::{ByName, ListOf, Listed, Mapping, Named};
use super::degrade::PolicyRule;
use super::field::{Field, Fields};
use super::key::KeyKind;
use super::kinds::{Flag, OneOf, Text, Time, Word};
use super::quota::{QUOTAS, QuotaKind, policy};
use super::review::Review;
use crate::app::MAX_KEY_BYTES;
use crate::key_rule::KeyRule;
use crate::policies::{Override, PolicyEntry, listed};
use crate::quota_spec::NamedQuota;

const OWN_QUOTAS: Field<ListOf<QuotaKind>> =
    Field::new("quotas", QUOTAS, "What is allowed; all of them are spent together, or none.").required();
const TIERS: Field<ByName<Mapping<Quotas>>> = Field::new(
    "tiers",
    ByName { each: TIER, what: "the name of a tier", step: ".TIER" },
    "Other quotas over the same counts, for requests that name the tier.",
)
.otherwise("none");
const OVERRIDES: Field<ByName<Mapping<OverrideSpec>>> = Field::new(
    "overrides",
    ByName { each: OVERRIDE, what: "key", step: ".KEY" },
    "What holds for single keys, over their tier and over what their requests say.",
)
.otherwise("none");
pub(super) const HEADERS: Field<OneOf<HeaderStyle>> = Field::new(
    "headers",
    OneOf::ANY,
    "Which rate-limit headers single answers carry: those of the IETF draft, or X-RateLimit-* with the reset in \
     seconds since 1970 or from now.",
).otherwise("those of the file");
const KEY: Field<KeyKind> = Field::new(
    "key",
    KeyKind,
    "Whom a request counts for when a proxy asks about it: address, {header: NAME}, or a list of these combined.",
).otherwise("the address");
const OWN_ON_FAILURE: Field<OneOf<OnFailure>> =
    Field::new("on_failure", OneOf::ANY, "What becomes of its requests that the store does not decide.")
        .otherwise("that of `degrade`");
const OWN_BUDGET: Field<Time> =
    Field::new("budget", Time::UP_TO_A_MINUTE, "How long the store may take for it.")
        .otherwise("that of `degrade`");
const OWN_RETRY_JITTER: Field<Time> = Field::new(
    "retry_jitter",
    Time::UP_TO_A_MINUTE.or_none(),
    "By how much at most its retries are put off, at random.",
)
.otherwise("that of `degrade`");
const OWN_CACHE_DENIALS: Field<Flag> =
    Field::new("cache_denials", Flag, "Whether its denials are remembered here until they end.")
        .otherwise("that of `degrade`");
const MODE: Field<OneOf<Mode>> = Field::new(
    "mode",
    OneOf::ANY,
    "Whether it is enforced, only decided and told (shadow), or neither (off).",
)
.usual("enforce");
const ALLOW: Field<ListOf<Text>> =
    Field::new("allow", KEYS, "Keys that are always allowed, and not counted.").otherwise("nobody");
const DENY: Field<ListOf<Text>> =
    Field::new("deny", KEYS, "Keys that are always denied.").otherwise("nobody");
const CANDIDATE: Field<ListOf<QuotaKind>> =
    Field::new("candidate", QUOTAS, "Other quotas that are tried beside its own, and not enforced.")
        .otherwise("none");

const KEYS: ListOf<Text> = ListOf { item: Text { what: "a key" }, what: "keys", most: None };

pub(super) const POLICY: Mapping<PolicySpec> = Mapping {
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
    read: |fields, review| Some(spec(fields, review)),
};

type Quotas = Option<Listed<NamedQuota>>;

const TIER: Mapping<Quotas> = Mapping {
    fields: &[&OWN_QUOTAS],
    one_of: &[],
    read: |fields, review| Some(fields.get(&OWN_QUOTAS, review)),
};

const OTHER_QUOTAS: Field<ListOf<QuotaKind>> = Field::new("quotas", QUOTAS, "Its own quotas.");
const OTHER_TIER: Field<Text> =
    Field::new("tier", Text { what: "the name of a tier" }, "A tier of the policy.");

const OVERRIDE: Mapping<OverrideSpec> =
    Mapping { fields: &[&OTHER_QUOTAS, &OTHER_TIER], one_of: &["quotas", "tier"], read: override_spec };

/// What is said of a key.
pub(super) enum OverrideSpec {
    Quotas(Listed<NamedQuota>),
    Tier { name: String, line: u64 },
}

/// A policy that does not know its name yet.
pub(super) struct PolicySpec {
    quotas: Quotas,
    tiers: Vec<Named<Quotas>>,
    overrides: Vec<Named<OverrideSpec>>,
    headers: Option<HeaderStyle>,
    key: Option<KeyRule>,
    pub(super) rule: PolicyRule,
    switch: Option<PolicySwitch>,
    candidate: Quotas,
}

fn spec(fields: &Fields<'_>, review: &mut Review) -> PolicySpec {
    let quotas = fields.get(&OWN_QUOTAS, review);
    let tiers = fields.get(&TIERS, review).unwrap_or_default();
    let overrides = fields.get(&OVERRIDES, review).unwrap_or_default();
    let headers = fields.get(&HEADERS, review);
    let key = fields.get(&KEY, review);
    let rule = PolicyRule {
        on_failure: fields.get(&OWN_ON_FAILURE, review),
        budget: fields.get(&OWN_BUDGET, review),
        retry_jitter: fields.get(&OWN_RETRY_JITTER, review),
        cache_denials: fields.get(&OWN_CACHE_DENIALS, review),
    };
    let switch = switch(fields, review);
    let candidate = fields.get(&CANDIDATE, review);
    PolicySpec { quotas, tiers, overrides, headers, key, rule, switch, candidate }
}

/// None if it is simply enforced.
fn switch(fields: &Fields<'_>, review: &mut Review) -> Option<PolicySwitch> {
    let mode = fields.get(&MODE, review);
    let mut keys = |field| fields.get(field, review).map(Listed::into_values);
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

fn override_spec(fields: &Fields<'_>, review: &mut Review) -> Option<OverrideSpec> {
    let (quotas, tier) = (fields.get(&OTHER_QUOTAS, review), fields.get(&OTHER_TIER, review));
    match (fields.has(&OTHER_QUOTAS), fields.has(&OTHER_TIER)) {
        (true, false) => quotas.map(OverrideSpec::Quotas),
        (false, true) => tier.map(|name| OverrideSpec::Tier { name, line: fields.line_of("tier") }),
        _ => None,
    }
}

impl PolicySpec {
    /// The policy called `name`, and how it is switched. None if it has no quotas that are right.
    pub(super) fn build(
        self,
        name: &str,
        path: &str,
        review: &mut Review,
    ) -> (Option<PolicyEntry>, Option<PolicySwitch>) {
        let standard = self.quotas.and_then(|quotas| policy(name, path, quotas, review));
        let tier_names: BTreeSet<String> = self.tiers.iter().map(|tier| tier.name.clone()).collect();
        let mut tiers = Vec::new();
        for tier in self.tiers {
            let quotas = tier.value.flatten();
            let policy = quotas.and_then(|quotas| policy(name, &tier.path, quotas, review));
            tiers.extend(policy.map(|policy| (tier.name, policy)));
        }
        let mut overrides = Vec::new();
        for entry in self.overrides {
            if !(1..=MAX_KEY_BYTES).contains(&entry.name.len()) {
                let message = format!("a key has 1 to {MAX_KEY_BYTES} bytes, not {}", entry.name.len());
                review.refuse(entry.line, entry.path.as_str(), message);
            }
            let Some(spec) = entry.value else { continue };
            let replacement = spec.build(name, &entry.path, &tier_names, review);
            overrides.extend(replacement.map(|replacement| (entry.name, replacement)));
        }
        let mut switch = self.switch;
        if let (Some(switch), Some(candidate)) = (&mut switch, self.candidate) {
            set_candidate(switch, name, path, candidate, review);
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
        review: &mut Review,
    ) -> Option<Override> {
        match self {
            Self::Quotas(quotas) => policy(name, path, quotas, review).map(Override::Quotas),
            Self::Tier { name: tier, line } => {
                if tiers.contains(&tier) {
                    return Some(Override::Tier(tier));
                }
                let message = format!("the policy has no tier {tier:?}; there is {}", listed(tiers.iter()));
                review.refuse(line, format!("{path}.tier"), message);
                None
            }
        }
    }
}

fn set_candidate(
    switch: &mut PolicySwitch,
    name: &str,
    path: &str,
    candidate: Listed<NamedQuota>,
    review: &mut Review,
) {
    let Listed { line, is_whole: true, .. } = candidate else { return };
    let quotas = candidate.into_values().into_iter().map(|named| named.quota);
    if let Err(error) = switch.set_candidate(name, quotas) {
        review.refuse(line, format!("{path}.candidate"), error.message());
    }
}

impl Word for HeaderStyle {
    const ALL: &'static [(&'static str, Self)] = &[
        ("ietf", Self::Draft),
        ("legacy-epoch", Self::LegacyEpoch),
        ("legacy-delta", Self::LegacyDelta),
        ("none", Self::None),
    ];
}
