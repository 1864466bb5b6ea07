//! The store behind the service, built from the configuration.

pub use slidegate::StoreStack;
use slidegate::StoreStackBuilder;
use slidegate::resilience::{FailureRule, PolicySwitch};
use slidegate::store::StoreUrl;

use slidegate_config::{DegradeConfig, DegradeOverride, MemoryConfig};

/// Opens the store of the service. A store that is temporarily unreachable is connected to in the background.
pub async fn open(
    url: &StoreUrl,
    memory: MemoryConfig,
    degrade: &DegradeConfig,
) -> Result<StoreStack, String> {
    let default = degrade.default_rule(url);
    let builder = StoreStack::builder().memory(memory.builder()).connect_in_background();
    let builder = builder
        .nodes(degrade.nodes.unwrap_or(1))
        .on_failure(default.on_failure)
        .budget(default.budget)
        .cache_denials(degrade.cache_denials)
        .retry_jitter(degrade.retry_jitter)
        .switches(degrade.switches.clone());
    let builder = degrade
        .overrides
        .iter()
        .fold(builder, |builder, (name, values)| with_override(builder, name, *values, default));
    builder.connect_to(url).await.map_err(|error| error.to_string())
}

/// Sets the values that a policy has in place of the defaults.
fn with_override(
    builder: StoreStackBuilder,
    name: &str,
    values: DegradeOverride,
    default: FailureRule,
) -> StoreStackBuilder {
    let mut builder = builder;
    if let Some(rule) = values.failure_rule(default) {
        builder = builder.failure_rule(name, rule);
    }
    if let Some(are_cached) = values.cache_denials {
        builder = builder.cache_denials_of(name, are_cached);
    }
    if let Some(max) = values.retry_jitter {
        builder = builder.retry_jitter_of(name, max);
    }
    builder
}

/// Opens the store of a single command: failures are errors, and modes and key lists apply as in a service.
pub async fn open_for_command(
    url: &StoreUrl,
    memory: MemoryConfig,
    switches: impl IntoIterator<Item = (String, PolicySwitch)>,
) -> Result<StoreStack, String> {
    let builder = StoreStack::builder().memory(memory.builder()).switches(switches);
    builder.connect_to(url).await.map_err(|error| error.to_string())
}
