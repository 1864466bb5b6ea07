//! Limits of envoyproxy/ratelimit as policies.

use std::path::Path;

use slidegate::Algorithm;

use super::write::{Imported, Writer};
use crate::command::Failure;
use crate::envoy::{Amount, Domains, Settings, Tree};

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
        let note = |what: &str| format!("{:?} is left out: {what}", rule.shown);
        match &rule.amount {
            Amount::Limited(_) => {}
            Amount::Unlimited => writer.comment(&note("it is unlimited, which needs no policy")),
            Amount::Nothing(_) => {
                writer.comment(&note("it allows nothing; list such keys under deny: of a policy"));
            }
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
        if let Amount::Limited(limited) = &rule.amount {
            is_empty = false;
            let policy = &limited.policy;
            let quota = (policy.quota_name(0), policy.quotas()[0]);
            writer.policy(policy.name(), &[quota], rule.is_shadow);
        }
    }
    Ok(Imported::one(Tree(&domains).to_string(), writer.finish(is_empty)))
}
