//! Limits of envoyproxy/ratelimit as policies.

use std::path::Path;

use slidegate::{Algorithm, Quota};

use super::write::{Imported, Writer};
use crate::cli::Failure;
use slidegate_config::envoy::{Amount, DomainTree, Domains, Settings};

const BEGINNING: [&str; 3] = [
    "Made by `slidegate import envoy`: one policy for each limit, to be asked for by name.",
    "Keys are for the caller to choose, such as the values of the descriptor.",
    "Envoy itself is served from the files as they are: slidegate serve --envoy-config DIR",
];

pub(super) fn import(path: &Path, algorithm: Option<Algorithm>) -> Result<Imported, Failure> {
    let algorithm = algorithm.unwrap_or(Algorithm::FixedWindow);
    let settings = Settings { algorithm, ..Settings::default() };
    let domains = Domains::load(path, settings).map_err(Failure::Files)?;
    let mut writer = Writer::new(&BEGINNING);
    let mut is_empty = true;
    for rule in domains.rules() {
        let note = |what: &str| format!("{:?} is left out: {what}", rule.display_name);
        match &rule.amount {
            Amount::Limited(_) | Amount::Zero(_) => {}
            Amount::Unlimited => writer.comment(&note("it is unlimited, which needs no policy")),
        }
        if !rule.replaces.is_empty() {
            writer.comment(&format!(
                "it replaces {:?}, which policies cannot: ask for one or the other",
                rule.replaces
            ));
        }
        if rule.is_quota {
            writer.comment("it was in quota mode, which policies do not have: mode: shadow comes near");
        }
        // Behind its comments: these stand above what they are about.
        let quota = match &rule.amount {
            Amount::Limited(limited) => Some((limited.policy.quota_name(0), limited.policy.quotas()[0])),
            Amount::Zero(unit) => Quota::new(0, unit.window())
                .ok()
                .map(|quota| (rule.display_name.as_str(), quota.with_algorithm(algorithm))),
            Amount::Unlimited => None,
        };
        if let Some(quota) = quota {
            is_empty = false;
            writer.policy(&rule.policy_name, &[quota], rule.is_shadow);
        }
    }
    Ok(Imported::one(DomainTree(&domains).to_string(), writer.finish(is_empty)))
}
