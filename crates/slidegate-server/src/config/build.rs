//! From the file's shape to what it means, collecting everything that is wrong with it.

use std::str::FromStr;

use serde_saphyr::Spanned;
use slidegate::{Policy, QuotaError, WhenFull};

use super::admin::{admin, tokens};
use super::degrade::{DegradeConfig, one_of};
use super::door::{limits, log, tls};
use super::file::{Entries, File, MemoryFields, PolicyFields, Quotas};
use super::problem::Problem;
use super::rules::{client, key, overrides};
use super::{Config, MemoryConfig};
use crate::policies::{Policies, PolicyEntry};
use crate::quota_spec::NamedQuota;

pub(super) fn build(file: File) -> Result<Config, Vec<Problem>> {
    let mut problems = Vec::new();
    let mut degrade = DegradeConfig::build(&file.degrade.unwrap_or_default(), &mut problems);
    for (name, fields) in file.policies.iter().flat_map(|entries| &entries.0) {
        degrade.add(name, fields, &mut problems);
    }
    let headers = one_of("headers", file.headers.as_ref(), &mut problems).unwrap_or_default();
    let usual = Policies::new(headers, client(file.trusted_proxies.as_ref(), &mut problems));
    let config = Config {
        degrade,
        http: parsed("http", file.http.as_ref(), &mut problems),
        grpc: parsed("grpc", file.grpc.as_ref(), &mut problems),
        resp: parsed("resp", file.resp.as_ref(), &mut problems),
        admin: admin(file.admin, &mut problems),
        tokens: tokens(file.tokens, &mut problems),
        store: parsed("store", file.store.as_ref(), &mut problems),
        limits: file.limits.map(|fields| limits(&fields, &mut problems)).unwrap_or_default(),
        tls: file.tls.map(tls),
        log: file.log.map(|fields| log(&fields, &mut problems)).unwrap_or_default(),
        memory: file.memory.map(|fields| memory(&fields, &mut problems)).unwrap_or_default(),
        policies: policies(usual, file.policies.as_ref(), &mut problems),
    };
    if problems.is_empty() { Ok(config) } else { Err(problems) }
}

pub(super) fn line_of<T>(spanned: &Spanned<T>) -> u64 {
    spanned.defined.line()
}

pub(super) fn parsed<T: FromStr<Err = String>>(
    field: &str,
    text: Option<&Spanned<String>>,
    problems: &mut Vec<Problem>,
) -> Option<T> {
    let text = text?;
    text.value.parse().map_err(|message| problems.push(Problem::at(line_of(text), field, message))).ok()
}

fn memory(fields: &MemoryFields, problems: &mut Vec<Problem>) -> MemoryConfig {
    let before = problems.len();
    let mut number = |field: &str, line, number: Result<u64, String>| {
        let refuse = |message: String| problems.push(Problem::at(line, format!("memory.{field}"), message));
        number.map_err(refuse).ok().and_then(|number| usize::try_from(number).ok())
    };
    let max_keys =
        fields.max_keys.as_ref().and_then(|keys| number("max_keys", line_of(keys), keys.value.checked()));
    let max_bytes = fields
        .max_bytes
        .as_ref()
        .and_then(|bytes| number("max_bytes", line_of(bytes), bytes.value.checked()));
    let when_full = fields.when_full.as_ref().and_then(|name| match name.value.as_str() {
        "evict" => Some(WhenFull::Evict),
        "refuse" => Some(WhenFull::Refuse),
        other => {
            let message = format!("{other:?} is not one of evict, refuse");
            problems.push(Problem::at(line_of(name), "memory.when_full", message));
            None
        }
    });
    let config = MemoryConfig { max_keys, max_bytes, when_full };
    // Only the store knows how many bytes its keys need.
    if problems.len() == before
        && let Err(error) = config.builder().validate()
    {
        let line = fields.max_bytes.as_ref().map(line_of).or(fields.max_keys.as_ref().map(line_of));
        problems.push(Problem::at(line.unwrap_or(0), format!("memory.{}", error.field()), error.message()));
    }
    config
}

fn policies(
    mut policies: Policies,
    entries: Option<&Entries<PolicyFields>>,
    problems: &mut Vec<Problem>,
) -> Policies {
    for (name, fields) in entries.iter().flat_map(|entries| &entries.0) {
        let path = format!("policies.{name}");
        let standard = policy(name, &path, &fields.quotas, problems);
        let mut tiers = Vec::new();
        for (tier, tier_fields) in fields.tiers.iter().flat_map(|tiers| &tiers.0) {
            let path = format!("{path}.tiers.{tier}");
            if let Some(policy) = policy(name, &path, &tier_fields.quotas, problems) {
                tiers.push((tier.clone(), policy));
            }
        }
        let overrides = overrides(&path, name, fields.overrides.as_ref(), &tiers, problems);
        let headers = one_of(&format!("{path}.headers"), fields.headers.as_ref(), problems);
        let key = key(&path, fields.key.as_ref(), problems);
        if let Some(policy) = standard {
            policies.insert(PolicyEntry { policy, tiers, overrides, headers, key, labels: None });
        }
    }
    policies
}

pub(super) fn policy(name: &str, path: &str, quotas: &Quotas, problems: &mut Vec<Problem>) -> Option<Policy> {
    let before = problems.len();
    let named = named_quotas(&format!("{path}.quotas"), quotas, problems);
    // With some quotas missing, what is wrong with the whole would be said of what is not there.
    if problems.len() > before {
        return None;
    }
    let refuse = |error: &QuotaError| {
        let part = if error.field() == "policy" { "" } else { ".quotas" };
        Problem::at(line_of(quotas), format!("{path}{part}"), error.message())
    };
    Policy::with_names(name, named.into_iter().map(|NamedQuota { name, quota }| (name, quota)))
        .map_err(|error| problems.push(refuse(&error)))
        .ok()
}

pub(super) fn named_quotas(path: &str, quotas: &Quotas, problems: &mut Vec<Problem>) -> Vec<NamedQuota> {
    let mut named = Vec::new();
    for (index, spec) in quotas.value.iter().enumerate() {
        match spec.value.build() {
            Ok(quota) => named.push(quota),
            Err(refused) => problems.extend(refused.into_iter().map(|problem| {
                let line = problem.line.unwrap_or(line_of(spec));
                let part = problem.field.map(|field| format!(".{field}")).unwrap_or_default();
                Problem::at(line, format!("{path}[{index}]{part}"), problem.message)
            })),
        }
    }
    named
}
