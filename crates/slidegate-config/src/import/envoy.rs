//! Converts limits of envoyproxy/ratelimit to policies.

use std::path::Path;

use slidegate::{Algorithm, Quota};

use super::Imported;
use super::write::ConfigWriter;
use crate::Problems;
use crate::envoy::{Amount, DomainTree, Domains, EnvoySettings};

const HEADER: [&str; 3] = [
    "Made by `slidegate import envoy`: one policy for each limit. A request names its policy.",
    "The caller chooses the key, such as the values of the descriptor.",
    "For Envoy itself, serve the files unchanged: slidegate serve --envoy-config DIR",
];

/// Converts a folder or a file to a configuration file with one policy for each limit.
pub fn to_policies(path: &Path, algorithm: Algorithm) -> Result<Imported, Vec<Problems>> {
    let settings = EnvoySettings { algorithm, ..EnvoySettings::default() };
    let domains = Domains::load(path, settings)?;
    let mut writer = ConfigWriter::new(&HEADER);
    let mut is_empty = true;
    for rule in domains.rules() {
        let left_out = |reason: &str| format!("{:?} is left out: {reason}", rule.display_name);
        match &rule.amount {
            Amount::Limited(_) | Amount::Zero(_) => {}
            Amount::Unlimited => writer.comment(&left_out("it is unlimited, which needs no policy")),
        }
        if !rule.replaces.is_empty() {
            writer.comment(&format!(
                "it replaces {:?}, which a policy cannot: use one policy or the other",
                rule.replaces
            ));
        }
        if rule.is_quota {
            writer.comment("it was in quota mode, which policies do not have: mode: shadow is similar");
        }
        // After its comments, which precede the policy in the file.
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
    Imported::config(path, DomainTree(&domains).to_string(), writer.finish(is_empty))
}
