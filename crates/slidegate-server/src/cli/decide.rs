//! `slidegate check`, `peek`, `charge`, `refund`, `reset` and `block`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::builder::{OsStringValueParser, TypedValueParser};
use serde::Deserialize;
use serde_json::{Value, json};
use slidegate::resilience::Switch;
use slidegate::{MAX_LIMIT, Quota, Verb};

use super::certificate::ClientCertificate;
use super::peek_report::quota_lines;
use super::{Failure, client, print};
use crate::app::{App, Decided};
use crate::decision_json::DecisionJson;
use crate::environment;
use crate::request::{Rejection, Request};
use crate::store::AnyStore;
use slidegate_config::{Config, StoreUrl};

/// What all of them take.
#[derive(Debug, clap::Args)]
#[command(group(clap::ArgGroup::new("limits").args(["quotas", "policy"]).required(true)))]
pub(super) struct Arguments {
    /// Who asks
    #[arg(value_parser = OsStringValueParser::new().try_map(utf8_key), required = true)]
    key: Option<String>,

    /// What is allowed, such as 100/1m; may be repeated, and all must allow it
    #[arg(long = "quota", value_name = "QUOTA")]
    quotas: Vec<Quota>,

    /// A policy of the server or of the file, instead of quotas
    #[arg(long, value_name = "NAME")]
    pub(super) policy: Option<String>,

    /// A tier of the policy
    #[arg(long, value_name = "NAME", requires = "policy", conflicts_with = "quotas")]
    tier: Option<String>,

    /// The configuration file that has the policy
    #[arg(long, value_name = "FILE", requires = "policy", conflicts_with_all = ["server", "quotas"])]
    pub(super) config: Option<PathBuf>,

    /// How much it costs; 0 spends nothing, and fits unless more is counted than the limit is now (`peek` says whether one more would)
    #[arg(long, value_name = "N", default_value = "1", value_parser = parse_cost, allow_negative_numbers = true)]
    cost: u64,

    /// Where to keep counts, such as `redis://127.0.0.1:6379`, else what `SLIDEGATE_STORE` says; a memory store starts
    /// empty with each call
    #[arg(long, value_name = "URL", conflicts_with = "server")]
    pub(super) store: Option<String>,

    /// Ask a running server, such as `http://127.0.0.1:8080`, with the token in `SLIDEGATE_TOKEN` if there is one
    #[arg(long, value_name = "URL")]
    server: Option<client::ServerUrl>,

    #[command(flatten)]
    pub(super) certificate: ClientCertificate,

    /// Print the whole answer as JSON
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

/// Blocks the key.
#[tokio::main(flavor = "current_thread")]
pub(super) async fn block(arguments: &Arguments, span: Duration) -> Result<ExitCode, Failure> {
    execute(Verb::Block, arguments, Some(span)).await
}

async fn execute(verb: Verb, arguments: &Arguments, span: Option<Duration>) -> Result<ExitCode, Failure> {
    let mut request = request(arguments);
    if let (Some(span), Some(fields)) = (span, request.as_object_mut()) {
        fields.remove("cost");
        fields.insert("for_ms".to_owned(), json!(span.as_millis() as u64));
    }
    let decided;
    let answer = match &arguments.server {
        Some(url) => {
            let server = client::Server { url, certificate: &arguments.certificate };
            client::decide(server, verb, &request).await?
        }
        None if arguments.certificate.is_given() => {
            return Err(Failure::new(
                "--client-cert: there is nobody to show it to; it goes with --server URL",
            ));
        }
        None => {
            decided = decide_here(verb, arguments, request).await?;
            DecisionJson::from(&decided)
        }
    };
    if arguments.json {
        let answer = serde_json::to_string(&answer).map_err(|error| Failure::new(error.to_string()))?;
        print(format!("{answer}\n"))?;
    } else {
        let lines = if verb == Verb::Peek { quota_lines(&answer) } else { String::new() };
        print(format!("{}\n{lines}", sentence(verb, &answer)))?;
    }
    Ok(if answer.allowed { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

/// The body of a request, by which a server and this process are asked alike.
fn request(arguments: &Arguments) -> Value {
    let Arguments { key, cost, .. } = arguments;
    let quotas: Vec<_> = arguments.quotas.iter().map(ToString::to_string).collect();
    match &arguments.policy {
        Some(policy) => json!({"policy": policy, "tier": arguments.tier, "key": key, "cost": cost}),
        None => json!({"quotas": quotas, "key": key, "cost": cost}),
    }
}

fn utf8_key(key: OsString) -> Result<String, &'static str> {
    key.into_string().map_err(|_| "it is not UTF-8")
}

async fn decide_here(verb: Verb, arguments: &Arguments, request: Value) -> Result<Decided, Failure> {
    let config = match (&arguments.config, &arguments.policy) {
        (Some(file), _) => {
            Config::load_without_references(file).map_err(|problems| Failure::Files(vec![problems]))?
        }
        (None, Some(_)) => {
            return Err(Failure::new("--policy needs --server URL or --config FILE, which have it"));
        }
        (None, None) => Config::default(),
    };
    // Not by the argument's own `env`, which would conflict with a server.
    let url = match arguments.store.clone().or_else(|| environment::text("SLIDEGATE_STORE")) {
        Some(url) => super::parse_store(&url)?,
        None => config.store.unwrap_or_default(),
    };
    let what = match verb {
        Verb::Check | Verb::Peek => None,
        Verb::Charge => Some("charge"),
        Verb::Refund => Some("give back"),
        Verb::Reset => Some("reset"),
        Verb::Block => Some("block"),
    };
    if let (StoreUrl::Memory, Some(what)) = (&url, what) {
        return Err(Failure::new(format!(
            "there is nothing to {what}: counts in memory belong to the process that has them; ask a service with \
             --server URL, or name the store that it counts in with --store URL"
        )));
    }
    // A store that fails is an error here; who asks once wants to know. Lists and switches hold as they do in a service.
    let store = Switch::new(AnyStore::open(&url, config.memory).await.map_err(Failure::new)?);
    store.replace(config.degrade.switches);
    let request = Request::deserialize(&request).map_err(|error| Failure::new(error.to_string()))?;
    let app = App::new(store, &config.policies);
    app.decide(verb, &request).await.map_err(|rejection| undecided(&rejection))
}

fn undecided(rejection: &Rejection) -> Failure {
    let doubt = if rejection.may_have_counted() { "; it may have been counted" } else { "" };
    Failure::new(format!("{rejection}{doubt}"))
}

fn sentence(verb: Verb, answer: &DecisionJson<'_>) -> String {
    let DecisionJson { remaining, limit, reset_after_ms, .. } = answer;
    match verb {
        Verb::Refund => return format!("given back: {remaining} of {limit} left"),
        Verb::Reset if answer.found == Some(false) => {
            return format!("nothing to forget: {remaining} of {limit} left");
        }
        Verb::Reset => return format!("forgotten: {remaining} of {limit} left"),
        Verb::Block => {
            return format!(
                "blocked: {remaining} of {limit} left, whole again in {}",
                seconds(*reset_after_ms)
            );
        }
        Verb::Charge if answer.allowed => return format!("charged: {remaining} of {limit} left"),
        Verb::Charge => {
            let violated = answer.violated.join(", ");
            let until = answer.retry_after_ms.map_or("never".to_owned(), |ms| format!("in {}", seconds(ms)));
            return format!("charged: over {violated}, within it again {until}");
        }
        Verb::Check | Verb::Peek => {}
    }
    if let Some(shadow) = answer.shadow.as_ref().filter(|shadow| answer.allowed && !shadow.allowed) {
        return format!(
            "allowed: would be denied, and is only looked at ({} of {} left)",
            shadow.remaining, shadow.limit
        );
    }
    // Whoever reads how much is left should know before whose count that is.
    let without = match (&*answer.source, &answer.reason) {
        ("fallback", Some(reason)) => format!(" without the store ({reason})"),
        _ => String::new(),
    };
    if answer.allowed {
        let by = if answer.source == "rule" { " (by a rule, and not counted)" } else { "" };
        let again = seconds(*reset_after_ms);
        return format!("allowed{without}: {remaining} of {limit} left, whole again in {again}{by}");
    }
    if answer.violated.is_empty() {
        return "denied by a rule".to_owned();
    }
    let violated = answer.violated.join(", ");
    match answer.retry_after_ms {
        Some(ms) => format!("denied{without} by {violated}: retry in {}", seconds(ms)),
        None => format!("denied{without} by {violated}: never, because the cost exceeds the limit"),
    }
}

pub(super) fn seconds(ms: u64) -> String {
    match ms % 1000 {
        0 => format!("{} s", ms / 1000),
        rest => format!("{}.{rest:03} s", ms / 1000),
    }
}
