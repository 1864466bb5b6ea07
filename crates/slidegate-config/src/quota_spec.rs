//! Quotas as configuration files and requests write them: `"100/1m"`, or an object with fields.

use std::fmt;
use std::time::Duration;

use serde::Deserialize;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, Error, MapAccess, Visitor};
use slidegate::{Algorithm, MAX_LIMIT, Policy, Quota, QuotaError, parse_window};
use utoipa::ToSchema;

use crate::bounded_integer::BoundedInteger;

/// Window of the quota that replaces an invalid one.
const PLACEHOLDER_WINDOW: Duration = Duration::from_secs(1);

/// A quota as text or as an object. It may be invalid.
#[derive(Clone, Debug, ToSchema)]
#[schema(as = Quota)]
#[serde(untagged)]
pub enum QuotaSpec {
    /// Such as `100/1m` or `5/15m strict-window`.
    Text(String),
    /// A quota as an object.
    Fields(Box<QuotaFields>),
}

/// A quota as an object.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct QuotaFields {
    /// Cost allowed per window; 0 denies every cost above 0.
    #[schema(value_type = u64, minimum = 0, maximum = 281_474_976_710_656_u64)]
    pub limit: BoundedInteger<0, MAX_LIMIT>,
    /// Length of the window, such as `30s`, `15m` or `1d`.
    #[serde(deserialize_with = "time")]
    pub window: String,
    /// `sliding-window` (default), `strict-window`, `sliding-log`, `fixed-window` or `token-bucket`.
    pub algorithm: Option<String>,
    /// Capacity of a token bucket, by default the limit.
    #[schema(value_type = Option<u64>, minimum = 1, maximum = 281_474_976_710_656_u64)]
    pub burst: Option<BoundedInteger<1, MAX_LIMIT>>,
    /// Number of slots of a strict window, an even number, by default 16.
    #[schema(value_type = Option<u64>, minimum = 4, maximum = 64)]
    pub slots: Option<BoundedInteger<4, 64>>,
    /// Start of the windows: `epoch` (default) or `first-request`.
    pub anchor: Option<String>,
    /// Name in responses and headers, by default the limit and the window.
    pub name: Option<String>,
}

/// Deserializes a time as text. The error about a number shows the missing unit.
fn time<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    struct TimeVisitor;

    impl Visitor<'_> for TimeVisitor {
        type Value = String;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(r#"a time with its unit, such as "30s", "15m" or "1d""#)
        }

        fn visit_str<E: Error>(self, text: &str) -> Result<String, E> {
            Ok(text.to_owned())
        }
    }

    deserializer.deserialize_str(TimeVisitor)
}

/// A valid quota and its name.
#[derive(Clone, Debug)]
pub struct NamedQuota {
    pub name: String,
    pub quota: Quota,
}

/// Problem with a field of a quota.
#[derive(Debug)]
pub struct QuotaProblem {
    /// Invalid field; `None` for a quota as text.
    pub field: Option<&'static str>,
    pub message: String,
}

impl QuotaSpec {
    /// Returns the quota, or all its problems.
    pub fn build(&self) -> Result<NamedQuota, Vec<QuotaProblem>> {
        match self {
            Self::Text(text) => match text.parse::<Quota>() {
                Ok(quota) => Ok(NamedQuota { name: quota.label(), quota }),
                Err(error) => Err(vec![text_problem(&error)]),
            },
            Self::Fields(fields) => fields.build(),
        }
    }
}

fn text_problem(error: &QuotaError) -> QuotaProblem {
    let message = if error.field() == "quota" { error.message().to_owned() } else { error.to_string() };
    QuotaProblem { field: None, message }
}

impl QuotaFields {
    pub fn build(&self) -> Result<NamedQuota, Vec<QuotaProblem>> {
        let mut errors = Vec::new();
        let quota = self.rate(&mut errors).map(|rate| self.with_options(rate, &mut errors));
        match quota {
            Some(quota) if errors.is_empty() => Ok(NamedQuota { name: self.name_of(quota), quota }),
            _ => {
                let problem = |error: &QuotaError| QuotaProblem {
                    field: Some(error.field()),
                    message: error.message().to_owned(),
                };
                Err(errors.iter().map(problem).collect())
            }
        }
    }

    /// Returns the limit per window. Placeholders replace invalid values, so that the other fields are checked too.
    fn rate(&self, errors: &mut Vec<QuotaError>) -> Option<Quota> {
        let window = parse_window(&self.window).unwrap_or_else(|error| {
            errors.push(error);
            PLACEHOLDER_WINDOW
        });
        Quota::new(self.limit.0, window)
            .map_err(|error| errors.push(error))
            .or(Quota::new(1, PLACEHOLDER_WINDOW))
            .ok()
    }

    fn with_options(&self, rate: Quota, errors: &mut Vec<QuotaError>) -> Quota {
        let mut quota = rate;
        let mut set = |changed: Result<Quota, QuotaError>| match changed {
            Ok(changed) => quota = changed,
            Err(error) => errors.push(error),
        };
        let algorithm = self.algorithm.as_ref().map_or(Ok(Algorithm::default()), |name| name.parse());
        match algorithm {
            Err(error) => set(Err(error)),
            // Options are checked against a valid algorithm only.
            Ok(algorithm) => {
                let base = rate.with_algorithm(algorithm);
                set(Ok(base));
                // Each algorithm accepts at most one of these options, so none overwrites another.
                if let Some(burst) = self.burst {
                    set(base.with_burst(burst.0));
                }
                if let Some(slots) = self.slots {
                    set(base.with_slots(slots.0));
                }
                if let Some(anchor) = &self.anchor {
                    set(anchor.parse().and_then(|anchor| base.with_anchor(anchor)));
                }
            }
        }
        if let Err(error) = Policy::with_names("any", [(self.name_of(quota), quota)]) {
            errors.push(error);
        }
        quota
    }

    fn name_of(&self, quota: Quota) -> String {
        self.name.clone().unwrap_or_else(|| quota.label())
    }
}

impl<'de> Deserialize<'de> for QuotaSpec {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(QuotaVisitor)
    }
}

struct QuotaVisitor;

impl<'de> Visitor<'de> for QuotaVisitor {
    type Value = QuotaSpec;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a quota such as \"100/1m\", or an object with limit and window")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<QuotaSpec, E> {
        Ok(QuotaSpec::Text(text.to_owned()))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<QuotaSpec, A::Error> {
        QuotaFields::deserialize(MapAccessDeserializer::new(map))
            .map(|fields| QuotaSpec::Fields(Box::new(fields)))
    }
}
