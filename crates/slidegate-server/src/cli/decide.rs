//! `slidegate check`, `peek`, `charge`, `refund`, `reset` and `block`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::builder::{OsStringValueParser, TypedValueParser};
use serde_json::{Value, json};
use slidegate::{MAX_LIMIT, Quota, Verb};
use slidegate_config::{Config, StoreUrl};
use slidegate_engine::{Decided, Engine, Rejection, UncheckedRequest, parse_json, store_stack};

use super::certificate::ClientCertificate;
use super::peek_report::{quota_lines, seconds};
use super::{Failure, client, print};
use crate::environment;
use crate::protocols::http::DecisionJson;
use crate::protocols::http::RequestJson;

/// Arguments of these commands.
#[derive(Debug, clap::Args)]
#[command(group(clap::ArgGroup::new("limits").args(["quotas", "policy"]).required(true)))]
pub(super) struct Arguments {
    /// Key, such as user:1
    #[arg(value_parser = OsStringValueParser::new().try_map(utf8_key), required = true)]
    key: Option<String>,

    /// Quota, such as 100/1m; may be repeated, and all quotas apply together
    #[arg(long = "quota", value_name = "QUOTA")]
    quotas: Vec<Quota>,

    /// Policy of the server or of the file, instead of quotas
    #[arg(long, value_name = "NAME")]
    pub(super) policy: Option<String>,

    /// Tier of the policy
    #[arg(long, value_name = "NAME", requires = "policy", conflicts_with = "quotas")]
    tier: Option<String>,

    /// Configuration file with the policy
    #[arg(long, value_name = "FILE", requires = "policy", conflicts_with_all = ["server", "quotas"])]
    pub(super) config: Option<PathBuf>,

    /// Cost of the request; 0 spends nothing, and is denied only if the count exceeds the limit (`peek` decides about a
    /// cost of 1)
    #[arg(long, value_name = "N", default_value = "1", value_parser = parse_cost, allow_negative_numbers = true)]
    cost: u64,

    /// URL of the store, such as `redis://127.0.0.1:6379` [default: `SLIDEGATE_STORE`, or the store of the file, or an
    /// empty memory store]
    #[arg(long, value_name = "URL", conflicts_with = "server")]
    pub(super) store: Option<String>,

    /// URL of a running server that decides, such as `http://127.0.0.1:8080`; its token is read from `SLIDEGATE_TOKEN`
    #[arg(long, value_name = "URL")]
    server: Option<client::ServerUrl>,

    #[command(flatten)]
    pub(super) certificate: ClientCertificate,

    /// Print the whole decision as JSON
    #[arg(long)]
    pub(super) json: bool,
}

fn parse_cost(text: &str) -> Result<u64, String> {
    let cost = text.parse().ok().filter(|cost| *cost <= MAX_LIMIT);
    cost.ok_or_else(|| format!("not a whole number between 0 and {MAX_LIMIT}"))
}

#[tokio::main(flavor = "current_thread")]
pub(super) async fn run(verb: Verb, arguments: &Arguments) -> Result<ExitCode, Failure> {
    execute(verb, arguments, None).await
}

/// Runs `slidegate block`.
#[tokio::main(flavor = "current_thread")]
pub(super) async fn block(arguments: &Arguments, duration: Duration) -> Result<ExitCode, Failure> {
    execute(Verb::Block, arguments, Some(duration)).await
}

async fn execute(verb: Verb, arguments: &Arguments, duration: Option<Duration>) -> Result<ExitCode, Failure> {
    let mut request = request(arguments);
    if let (Some(duration), Some(fields)) = (duration, request.as_object_mut()) {
        fields.remove("cost");
        fields.insert("for_ms".to_owned(), json!(duration.as_millis() as u64));
    }
    let (body, parsed, decided);
    let decision = match &arguments.server {
        Some(url) => {
            let server = client::Server { url, certificate: &arguments.certificate };
            client::decide(server, verb, &request).await?
        }
        None if arguments.certificate.is_given() => {
            return Err(Failure::new("--client-cert needs --server URL"));
        }
        None => {
            body = request.to_string();
            parsed = parse_json::<RequestJson<'_>>(&body).map_err(|rejection| undecided(&rejection))?.0;
            decided = decide_locally(verb, arguments, &parsed).await?;
            DecisionJson::from(&decided)
        }
    };
    if arguments.json {
        let json = serde_json::to_string(&decision).map_err(|error| Failure::new(error.to_string()))?;
        print(format!("{json}\n"))?;
    } else {
        let lines = if verb == Verb::Peek { quota_lines(&decision) } else { String::new() };
        print(format!("{}\n{lines}", describe(verb, &decision)))?;
    }
    Ok(if decision.allowed { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

/// Returns the JSON body of the request, for a server as well as for this process.
fn request(arguments: &Arguments) -> Value {
    let Arguments { key, cost, .. } = arguments;
    let quotas: Vec<_> = arguments.quotas.iter().map(ToString::to_string).collect();
    match &arguments.policy {
        Some(policy) => json!({"policy": policy, "tier": arguments.tier, "key": key, "cost": cost}),
        None => json!({"quotas": quotas, "key": key, "cost": cost}),
    }
}

fn utf8_key(key: OsString) -> Result<String, &'static str> {
    key.into_string().map_err(|_| "not valid UTF-8")
}

async fn decide_locally<'a>(
    verb: Verb,
    arguments: &Arguments,
    request: &'a UncheckedRequest<'_>,
) -> Result<Decided<'a>, Failure> {
    let config = match (&arguments.config, &arguments.policy) {
        (Some(file), _) => {
            Config::load_without_references(file).map_err(|problems| Failure::Files(vec![problems]))?
        }
        (None, Some(_)) => {
            return Err(Failure::new("--policy needs --server URL or --config FILE"));
        }
        (None, None) => Config::default(),
    };
    // Not an `env` of the argument: clap would report a conflict with --server.
    let url = match arguments.store.clone().or_else(|| environment::text("SLIDEGATE_STORE")) {
        Some(url) => super::parse_store(&url)?,
        None => config.store.unwrap_or_default(),
    };
    if matches!(url, StoreUrl::Memory) && !verb.is_check_or_peek() {
        return Err(Failure::new(format!(
            "nothing to {verb}: counts in memory belong to one process; name a service with --server URL, or the store \
             of its counts with --store URL"
        )));
    }
    // Modes and key lists of policies apply as in the service. There is no fallback: a store failure is an error.
    let opened = store_stack::open_for_command(&url, config.memory, config.degrade.switches).await;
    let store = opened.map_err(Failure::new)?;
    let engine = Engine::new(store, &config.policies);
    engine.decide_request(verb, request).await.map_err(|rejection| undecided(&rejection))
}

fn undecided(rejection: &Rejection) -> Failure {
    let warning = if rejection.may_have_counted() { "; the request may have been counted" } else { "" };
    Failure::new(format!("{rejection}{warning}"))
}

/// Describes a decision in one line.
fn describe(verb: Verb, decision: &DecisionJson<'_>) -> String {
    let DecisionJson { remaining, limit, reset_after_ms, .. } = decision;
    match verb {
        Verb::Refund => return format!("refunded: {remaining} of {limit} left"),
        Verb::Reset if decision.found == Some(false) => {
            return format!("nothing to reset: {remaining} of {limit} left");
        }
        Verb::Reset => return format!("reset: {remaining} of {limit} left"),
        Verb::Block => {
            return format!(
                "blocked: {remaining} of {limit} left, full again in {}",
                seconds(*reset_after_ms)
            );
        }
        Verb::Charge if decision.allowed => return format!("charged: {remaining} of {limit} left"),
        Verb::Charge => {
            let violated = decision.violated.join(", ");
            let until =
                decision.retry_after_ms.map_or("never".to_owned(), |ms| format!("in {}", seconds(ms)));
            return format!("charged: over {violated}, within the limit again {until}");
        }
        _ if verb.is_check_or_peek() => {}
        _ => return format!("{verb}: {remaining} of {limit} left"),
    }
    if let Some(shadow) = decision.shadow.as_ref().filter(|shadow| decision.allowed && !shadow.allowed) {
        return format!(
            "allowed: the denial is not enforced ({} of {} left)",
            shadow.remaining, shadow.limit
        );
    }
    // A fallback counts apart from the store, so the remaining amount is not the store's.
    let without_store = match (&*decision.source, &decision.reason) {
        ("fallback", Some(reason)) => format!(" without the store ({reason})"),
        _ => String::new(),
    };
    if decision.allowed {
        let by_rule = if decision.source == "rule" { " (by a rule, not counted)" } else { "" };
        let full_in = seconds(*reset_after_ms);
        return format!(
            "allowed{without_store}: {remaining} of {limit} left, full again in {full_in}{by_rule}"
        );
    }
    if decision.violated.is_empty() {
        return "denied by a rule".to_owned();
    }
    let violated = decision.violated.join(", ");
    match decision.retry_after_ms {
        Some(ms) => format!("denied{without_store} by {violated}: retry in {}", seconds(ms)),
        None => format!("denied{without_store} by {violated}: never, because the cost exceeds the limit"),
    }
}
