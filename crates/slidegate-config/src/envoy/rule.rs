//! Rules: the limits of a configuration.

use slidegate::{Algorithm, MAX_NAME_BYTES, Policy, Quota, QuotaError};

use super::unit::Unit;

/// A limit of the configuration.
#[derive(Debug)]
pub struct Rule {
    pub amount: Amount,
    /// Name in responses; empty if the file gives none.
    pub name: String,
    /// Name in messages: `name`, or else the name of the policy.
    pub display_name: String,
    /// Names of rules that this rule replaces in a request that matches both.
    pub replaces: Vec<String>,
    /// Whether the rule is only observed, and never denies (`shadow_mode`).
    pub is_shadow: bool,
    /// Whether the rule denies only if all rules in quota mode deny (`quota_mode`).
    pub is_quota: bool,
    /// Metadata for the proxy while the limit is not reached.
    pub metadata: Option<serde_json::Map<String, serde_json::Value>>,
    /// Values that metrics distinguish.
    pub metric_values: MetricValues,
    /// Name of the policy that counts the decisions.
    pub policy_name: String,
    /// Position of the rule among all rules of the configuration, in the order of the files.
    pub index: usize,
}

/// Descriptor values that metrics distinguish.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MetricValues {
    /// Only the values in the file.
    #[default]
    Configured,
    /// Also the values of descriptors with `value_to_metric`.
    Marked,
    /// All values (`detailed_metric`).
    All,
}

/// Amount that a rule allows.
#[derive(Debug)]
pub enum Amount {
    Unlimited,
    /// A limit of zero requests, which denies every request.
    Zero(Unit),
    Limited(Box<LimitedAmount>),
}

/// A limit that is counted.
#[derive(Debug)]
pub struct LimitedAmount {
    pub requests_per_unit: u32,
    pub unit: Unit,
    pub policy: Policy,
}

/// Builds a quota with the windows of envoyproxy/ratelimit: multiples of the unit since 1970.
pub fn quota(requests_per_unit: u32, unit: Unit, algorithm: Algorithm) -> Result<Quota, QuotaError> {
    Ok(Quota::new(requests_per_unit.into(), unit.window())?.with_algorithm(algorithm))
}

/// Returns the policy name for the descriptor at `path`: the path itself, or a hashed name if it is too long or
/// contains control characters.
pub(super) fn policy_name(path: &str) -> String {
    if path.len() <= MAX_NAME_BYTES && !path.chars().any(char::is_control) {
        return path.to_owned();
    }
    hashed_name(path, path)
}

/// Returns the beginning of `path` with a hash of `unique`.
pub(super) fn hashed_name(path: &str, unique: &str) -> String {
    const HASH_DIGITS: usize = 16;
    let mut end = MAX_NAME_BYTES - HASH_DIGITS - 1;
    while !path.is_char_boundary(end.min(path.len())) {
        end -= 1;
    }
    let readable = path[..end.min(path.len())].replace(char::is_control, "?");
    format!("{readable}#{}", &blake3::hash(unique.as_bytes()).to_hex()[..HASH_DIGITS])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_path_has_a_valid_and_unique_policy_name() {
        let long = "ä".repeat(300);
        for path in ["a.b_c", "a.b\n", &long, &format!("{long}b"), "\u{7}"] {
            assert!(Policy::new(&policy_name(path), [Quota::new(1, Unit::Day.window()).unwrap()]).is_ok());
        }
        assert_eq!(policy_name("a.b_c"), "a.b_c");
        assert_ne!(policy_name(&long), policy_name(&format!("{long}b")));
        assert_ne!(policy_name("a\n"), policy_name("a\t"));
    }
}
