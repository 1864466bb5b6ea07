//! `slidegate reset`.

use std::process::ExitCode;

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::json;
use slidegate::store::Store;
use slidegate::{Policy, Verb};
use slidegate_config::{Config, StoreUrl};
use slidegate_engine::{Policies, StoreStack, store_stack};

use super::{Failure, client, decide, print};
use crate::environment;
use crate::protocols::admin::PolicyReset;

/// Reset the counts of a key, or with --all those of all keys of a policy
#[derive(Debug, clap::Args)]
#[group(id = "reset")]
pub(super) struct Arguments {
    /// Reset all keys of the policy, in the store or by the admin API of a running service
    #[arg(long, requires = "policy", conflicts_with_all = ["key", "quotas", "tier", "server"])]
    all: bool,

    /// With --all, URL of the admin API of a running service, such as `http://127.0.0.1:8082`; an admin token with the scope
    /// `write` is read from `SLIDEGATE_TOKEN`
    #[arg(long, value_name = "URL", requires = "all", conflicts_with_all = ["key", "store", "config"])]
    admin: Option<client::ServerUrl>,

    #[command(flatten)]
    common: decide::Arguments,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    if !arguments.all {
        return decide::run(Verb::Reset, &arguments.common);
    }
    let policy = arguments.common.policy.as_deref().unwrap_or_default();
    let reset = reset_policy(arguments, policy)?;
    let text = match reset {
        _ if arguments.common.json => json!({"done": reset.done, "keys": reset.keys}).to_string(),
        PolicyReset { done: false, .. } => {
            format!("in progress: the service continues to reset all keys of {policy}")
        }
        PolicyReset { keys: Some(keys), .. } => format!("reset: {keys} keys of {policy}"),
        PolicyReset { keys: None, .. } => format!("reset: all keys of {policy}"),
    };
    print(format!("{text}\n")).map(|()| ExitCode::SUCCESS)
}

#[tokio::main(flavor = "current_thread")]
async fn reset_policy(arguments: &Arguments, policy: &str) -> Result<PolicyReset, Failure> {
    let certificate = &arguments.common.certificate;
    if let Some(url) = &arguments.admin {
        let name = utf8_percent_encode(policy, NON_ALPHANUMERIC);
        let server = client::Server { url, certificate };
        return client::post(server, &format!("/v1/policies/{name}/reset"), &json!({})).await;
    }
    if certificate.is_given() {
        return Err(Failure::new("--client-cert needs --admin URL"));
    }
    let config = match &arguments.common.config {
        Some(file) => {
            Config::load_without_references(file).map_err(|problems| Failure::Files(vec![problems]))?
        }
        None => Config::default(),
    };
    if arguments.common.config.is_some() {
        Policies::from(&config.policies)
            .entry(policy)
            .map_err(|rejection| Failure::new(rejection.to_string()))?;
    }
    let url = match arguments.common.store.clone().or_else(|| environment::text("SLIDEGATE_STORE")) {
        Some(url) => super::parse_store(&url)?,
        None => config.store.unwrap_or_default(),
    };
    if let StoreUrl::Memory = url {
        return Err(Failure::new(
            "nothing to reset: counts in memory belong to one process; name the admin API of a service with --admin URL, \
             or a shared store with --store URL",
        ));
    }
    let store = store_stack::open_for_command(&url, config.memory, []).await.map_err(Failure::new)?;
    reset_in_store(&store, policy).await.map_err(Failure::new)
}

/// Resets the policy of this name and its candidate in the store. Keys depend on the name only, so the quota is arbitrary.
async fn reset_in_store(store: &StoreStack, name: &str) -> Result<PolicyReset, String> {
    let policy = Policy::parse(name, ["1/1s"]).map_err(|error| format!("--policy: {}", error.message()))?;
    let candidate = Policy::candidate_for(name, policy.quotas().iter().copied());
    let failed = |error: slidegate::StoreError| format!("{error}; some keys may have been reset");
    if let Ok(candidate) = candidate {
        store.forget(&candidate).await.map_err(failed)?;
    }
    Ok(PolicyReset::completed(store.forget(&policy).await.map_err(failed)?))
}
