//! `slidegate reset`.

use std::process::ExitCode;

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::json;
use slidegate::{Policy, Store, Verb};

use super::{Failure, client, decide, print};
use crate::environment;
use crate::policies::Policies;
use crate::protocols::admin::PolicyReset;
use crate::store::AnyStore;
use slidegate_config::{Config, StoreUrl};

/// Forget what a key has spent, or with --all what all keys of a policy have spent
#[derive(Debug, clap::Args)]
#[group(id = "reset")]
pub(super) struct Arguments {
    /// Forget all keys of the policy: in the store, or by the admin API of a running service
    #[arg(long, requires = "policy", conflicts_with_all = ["key", "quotas", "tier", "server"])]
    all: bool,

    /// With --all, the admin API of a running service, such as `http://127.0.0.1:8082`, with an admin token of the scope
    /// `write` in `SLIDEGATE_TOKEN` if it wants one
    #[arg(long, value_name = "URL", requires = "all", conflicts_with_all = ["key", "store", "config"])]
    admin: Option<client::ServerUrl>,

    #[command(flatten)]
    one: decide::Arguments,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    if !arguments.all {
        return decide::run(Verb::Reset, &arguments.one);
    }
    let policy = arguments.one.policy.as_deref().unwrap_or_default();
    let forgotten = forget(arguments, policy)?;
    let text = match forgotten {
        _ if arguments.one.json => json!({"done": forgotten.done, "keys": forgotten.keys}).to_string(),
        PolicyReset { done: false, .. } => {
            format!("being forgotten: the service goes on with all keys of {policy}")
        }
        PolicyReset { keys: Some(keys), .. } => format!("forgotten: {keys} keys of {policy}"),
        PolicyReset { keys: None, .. } => format!("forgotten: all keys of {policy}"),
    };
    print(format!("{text}\n")).map(|()| ExitCode::SUCCESS)
}

#[tokio::main(flavor = "current_thread")]
async fn forget(arguments: &Arguments, policy: &str) -> Result<PolicyReset, Failure> {
    let certificate = &arguments.one.certificate;
    if let Some(url) = &arguments.admin {
        let name = utf8_percent_encode(policy, NON_ALPHANUMERIC);
        let server = client::Server { url, certificate };
        return client::post(server, &format!("/v1/policies/{name}/reset"), &json!({})).await;
    }
    if certificate.is_given() {
        return Err(Failure::new("--client-cert: it goes with --admin URL"));
    }
    let config = match &arguments.one.config {
        Some(file) => {
            Config::load_without_references(file).map_err(|problems| Failure::Files(vec![problems]))?
        }
        None => Config::default(),
    };
    if arguments.one.config.is_some() {
        Policies::from(&config.policies)
            .source(policy)
            .map_err(|rejection| Failure::new(rejection.to_string()))?;
    }
    let url = match arguments.one.store.clone().or_else(|| environment::text("SLIDEGATE_STORE")) {
        Some(url) => super::parse_store(&url)?,
        None => config.store.unwrap_or_default(),
    };
    if let StoreUrl::Memory = url {
        return Err(Failure::new(
            "there is nothing to reset: counts in memory belong to the process that has them; name its admin API with \
             --admin URL, or the store with --store URL",
        ));
    }
    let store = AnyStore::open(&url, config.memory).await.map_err(Failure::new)?;
    forget_in(&store, policy).await.map_err(Failure::new)
}

/// Counts belong to the name alone, so any quotas will do. Those of a candidate that is tried beside the policy go too.
async fn forget_in(store: &AnyStore, name: &str) -> Result<PolicyReset, String> {
    let policy = Policy::parse(name, ["1/1s"]).map_err(|error| format!("--policy: {}", error.message()))?;
    let candidate = Policy::candidate_for(name, policy.quotas().iter().copied());
    let failed = |error: slidegate::StoreError| format!("{error}; some keys may have been forgotten");
    if let Ok(candidate) = candidate {
        store.forget(&candidate).await.map_err(failed)?;
    }
    Ok(PolicyReset::completed(store.forget(&policy).await.map_err(failed)?))
}
