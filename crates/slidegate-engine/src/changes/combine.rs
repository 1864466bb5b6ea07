//! Combines the configuration file with the changes into the effective policies.

use serde_json::{Value, json};
use slidegate::Policy;
use slidegate::resilience::{Mode, PolicySwitch};
use slidegate_config::{NamedQuota, Override, PolicyEntry, PolicySet, QuotaSpec, listed};

use super::changeset::{Change, Part, Setting, Subject};
use crate::request::parse_json;
use crate::selection::quota_rejection;

use crate::request::Rejection;

/// Policies and switches of the configuration file.
#[derive(Clone, Debug)]
pub struct Base {
    pub policies: PolicySet,
    pub switches: Vec<(String, PolicySwitch)>,
}

/// Effective policies and switches.
#[derive(Debug)]
pub struct Combined {
    pub policies: PolicySet,
    pub switches: Vec<(String, PolicySwitch)>,
    /// Changes that cannot be applied because the file has changed since, each with the reason.
    pub not_in_force: Vec<(Change, String)>,
}

impl Base {
    /// Applies the unexpired changes.
    pub fn combined_with(&self, changes: &[Change], now_ms: u64) -> Combined {
        let mut entries: Vec<PolicyEntry> = self.policies.entries().cloned().collect();
        let mut switches = self.switches.clone();
        let mut not_in_force = Vec::new();
        for entry in &mut entries {
            entry.labels = Some(quota_names(entry));
        }
        for change in changes.iter().filter(|change| !change.is_expired(now_ms)) {
            if let Err(rejection) = apply(change, &mut entries, &mut switches) {
                not_in_force.push((change.clone(), rejection.to_string()));
            }
        }
        let mut policies = self.policies.without_policies();
        for entry in entries {
            policies.insert(entry);
        }
        Combined { policies, switches, not_in_force }
    }

    /// Returns the value of a subject in the file; null for a key without an override.
    pub fn value_of(&self, subject: &Subject) -> Value {
        let Some(entry) = self.policies.get(&subject.policy) else { return Value::Null };
        let quotas = |policy: &Policy| {
            let quotas: Vec<String> = policy.quotas().iter().map(ToString::to_string).collect();
            json!({ "quotas": quotas })
        };
        match &subject.part {
            Part::Mode => {
                let switch = self.switches.iter().find(|(name, _)| *name == subject.policy);
                json!({ "mode": switch.map_or(Mode::default(), |(_, switch)| switch.mode).name() })
            }
            Part::Quotas => quotas(&entry.policy),
            Part::Tier(tier) => {
                let tier = entry.tiers.iter().find(|(name, _)| name == tier);
                tier.map_or(Value::Null, |(_, policy)| quotas(policy))
            }
            Part::Key(key) => match entry.overrides.iter().find(|(name, _)| name == key) {
                Some((_, Override::Quotas(policy))) => quotas(policy),
                Some((_, Override::Tier(tier))) => json!({ "tier": tier }),
                None => Value::Null,
            },
            Part::Keys => Value::Null,
        }
    }

    /// Returns the subjects of `changes` that override a value of the file. Most keys have none.
    pub fn overridden<'a>(&self, changes: &'a [Change], now_ms: u64) -> Vec<&'a Subject> {
        let in_force =
            changes.iter().filter(|change| !change.is_expired(now_ms)).map(|change| &change.subject);
        in_force.filter(|subject| !self.value_of(subject).is_null()).collect()
    }

    /// Checks that the subject of a change exists and that its setting is valid.
    pub fn validate(&self, change: &Change) -> Result<(), Rejection> {
        let mut entries: Vec<PolicyEntry> = self.policies.entries().cloned().collect();
        apply(change, &mut entries, &mut Vec::new())
    }
}

/// Returns the names of all quotas of a policy and its tiers.
fn quota_names(entry: &PolicyEntry) -> Vec<String> {
    let policies = std::iter::once(&entry.policy).chain(entry.tiers.iter().map(|(_, policy)| policy));
    let names = |policy: &Policy| -> Vec<String> {
        (0..policy.quotas().len()).map(|index| policy.quota_name(index).to_owned()).collect()
    };
    policies.flat_map(names).collect()
}

fn apply(
    change: &Change,
    entries: &mut [PolicyEntry],
    switches: &mut Vec<(String, PolicySwitch)>,
) -> Result<(), Rejection> {
    let name = change.subject.policy.as_str();
    let Some(index) = entries.iter().position(|entry| entry.policy.name() == name) else {
        let known: Vec<_> = entries.iter().map(|entry| entry.policy.name().to_owned()).collect();
        let known = listed(known.iter().map(String::as_str));
        return Err(Rejection::unknown_policy(&format!("there is no policy {name:?}; known: {known}")));
    };
    let entry = &mut entries[index];
    match (&change.subject.part, &change.setting) {
        (Part::Mode, Setting::Mode(mode)) => {
            let mode = parse_mode(mode)?;
            match switches.iter_mut().find(|(known, _)| known == name) {
                Some((_, switch)) => switch.mode = mode,
                None => {
                    let mut switch = PolicySwitch::default();
                    switch.mode = mode;
                    switches.push((name.to_owned(), switch));
                }
            }
        }
        (Part::Quotas, Setting::Quotas(quotas)) => entry.policy = policy(name, quotas)?,
        (Part::Tier(tier), Setting::Quotas(quotas)) => {
            let policy = policy(name, quotas)?;
            let index = known_tier(entry, tier)?;
            entry.tiers[index].1 = policy;
        }
        (Part::Key(key), setting) => {
            let replacement = match setting {
                Setting::Quotas(quotas) => Override::Quotas(policy(name, quotas)?),
                Setting::Tier(tier) => {
                    known_tier(entry, tier)?;
                    Override::Tier(tier.clone())
                }
                Setting::Mode(_) => {
                    return Err(Rejection::out_of_range("mode", "applies to a policy, not to a key"));
                }
            };
            entry.overrides.retain(|(known, _)| known != key);
            entry.overrides.push((key.clone(), replacement));
        }
        _ => {
            return Err(Rejection::out_of_range("quotas", "does not apply to this part of the policy"));
        }
    }
    Ok(())
}

/// Returns the index of a tier, or an error with the known tiers.
fn known_tier(entry: &PolicyEntry, tier: &str) -> Result<usize, Rejection> {
    let index = entry.tiers.iter().position(|(known, _)| known == tier);
    index.ok_or_else(|| {
        let known: Vec<_> = entry.tiers.iter().map(|(known, _)| format!("{known:?}")).collect();
        let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
        let name = entry.policy.name();
        Rejection::out_of_range("tier", format!("policy {name:?} has no tier {tier:?}; known: {known}"))
    })
}

pub(crate) fn parse_mode(text: &str) -> Result<Mode, Rejection> {
    let modes = [Mode::Enforce, Mode::Shadow, Mode::Off];
    modes.into_iter().find(|mode| mode.name() == text).ok_or_else(|| {
        Rejection::out_of_range("mode", format!("{text:?} is not one of enforce, shadow, off"))
    })
}

fn policy(name: &str, quotas: &[Value]) -> Result<Policy, Rejection> {
    let mut named = Vec::with_capacity(quotas.len());
    for (index, quota) in quotas.iter().enumerate() {
        let spec: QuotaSpec = parse_json(&quota.to_string()).map_err(|rejection| {
            let part = rejection.field.map_or(String::new(), |field| format!(".{field}"));
            Rejection::out_of_range(format!("quotas[{index}]{part}"), rejection.detail)
        })?;
        named.push(spec.build().map_err(|problems| quota_rejection(index, &problems))?);
    }
    Policy::with_names(name, named.into_iter().map(|NamedQuota { name, quota }| (name, quota)))
        .map_err(|error| Rejection::out_of_range("quotas", error.message()))
}

#[cfg(test)]
mod tests {
    use super::super::operation_id::OperationId;
    use super::super::timestamp::Timestamp;
    use super::*;
    use crate::policies::Policies;

    fn base() -> Base {
        let policy = |quota: &str| Policy::parse("api", [quota]).unwrap();
        let mut entry = PolicyEntry::from(policy("10/1m"));
        entry.tiers.push(("premium".to_owned(), policy("100/1m")));
        entry.overrides.push(("vip".to_owned(), Override::Tier("premium".to_owned())));
        let mut policies = PolicySet::default();
        policies.insert(entry);
        Base { policies, switches: Vec::new() }
    }

    fn change(part: Part, setting: Setting, until_ms: Option<u64>) -> Change {
        let subject = Subject { policy: "api".to_owned(), part };
        Change {
            id: OperationId::default(),
            subject,
            setting,
            until: until_ms.map(Timestamp),
            by: "ops".to_owned(),
            at: Timestamp(0),
            note: None,
        }
    }

    fn limit(policies: &PolicySet, tier: Option<&str>, key: &str) -> u64 {
        Policies::from(policies).find("api", tier, Some(key)).unwrap().policy().quotas()[0].limit()
    }

    #[test]
    fn a_change_overrides_the_file_until_it_expires() {
        let quotas = |text: &str| Setting::Quotas(vec![json!(text)]);
        let changes = [
            change(Part::Quotas, quotas("20/1m"), Some(2000)),
            change(Part::Tier("premium".to_owned()), quotas("200/1m"), None),
            change(Part::Key("one".to_owned()), quotas("1/1m"), Some(1000)),
            change(Part::Key("two".to_owned()), Setting::Tier("premium".to_owned()), None),
        ];
        // Time, and the limits of: any key, any key with the tier, a key with its own quotas, a key with a tier by a change,
        // a key with a tier by the file.
        let table =
            [(999, [20, 200, 1, 200, 200]), (1000, [20, 200, 20, 200, 200]), (2000, [10, 200, 10, 200, 200])];
        for (now_ms, expected) in table {
            let Combined { policies, not_in_force, .. } = base().combined_with(&changes, now_ms);
            let found = [
                limit(&policies, None, "any"),
                limit(&policies, Some("premium"), "any"),
                limit(&policies, None, "one"),
                limit(&policies, None, "two"),
                limit(&policies, None, "vip"),
            ];
            assert_eq!(found, expected, "at {now_ms}");
            assert!(not_in_force.is_empty());
        }
    }

    #[test]
    fn an_inapplicable_change_is_reported_and_affects_no_other() {
        let mut elsewhere = change(Part::Mode, Setting::Mode("off".to_owned()), None);
        elsewhere.subject.policy = "gone".to_owned();
        let tier = change(Part::Tier("gone".to_owned()), Setting::Quotas(vec![json!("1/1m")]), None);
        let mode = change(Part::Mode, Setting::Mode("shadow".to_owned()), None);
        let combined = base().combined_with(&[elsewhere, tier, mode], 0);
        assert_eq!(combined.not_in_force.len(), 2);
        assert_eq!(limit(&combined.policies, None, "any"), 10);
        let [(name, switch)] = combined.switches.as_slice() else { panic!("{:?}", combined.switches) };
        assert_eq!((name.as_str(), switch.mode), ("api", Mode::Shadow));
    }
}
