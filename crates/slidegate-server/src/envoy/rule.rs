//! What is done with a descriptor that a configuration names.

use std::sync::Arc;

use slidegate::{Algorithm, MAX_NAME_BYTES, Policy, Quota, QuotaError};

use super::unit::Unit;
use crate::signals::{Signals, SignalsByValue};

/// A limit of the configuration.
#[derive(Debug)]
pub(crate) struct Rule {
    pub(crate) amount: Amount,
    /// What it is called in answers; empty if it has no name.
    pub(crate) name: String,
    /// What it is called where everything has a name.
    pub(crate) shown: String,
    /// The names of rules that do not count for a request that meets this one.
    pub(crate) replaces: Vec<String>,
    /// Whether it denies nobody.
    pub(crate) is_shadow: bool,
    /// Whether it denies only together with all others of its kind.
    pub(crate) is_quota: bool,
    /// What the proxy is told while the limit is not reached.
    pub(crate) metadata: Option<prost_types::Struct>,
    /// Which values are counted apart.
    pub(crate) apart: Apart,
    /// Name of the policy, which its decisions are counted under.
    pub(crate) policy_name: String,
    pub(crate) signals: Arc<Signals>,
    /// For values that are counted apart.
    pub(crate) by_value: SignalsByValue,
}

/// Which values of a request its decisions are counted by, apart from those with other values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Apart {
    /// None but those in the file.
    #[default]
    None,
    /// Those of descriptors that ask for it, by `value_to_metric`.
    Some,
    /// All, by `detailed_metric`.
    All,
}

/// How much a rule allows.
#[derive(Debug)]
pub(crate) enum Amount {
    Unlimited,
    /// A limit of nothing, which no quota can express: whoever meets it is denied.
    Nothing(Unit),
    Limited(Box<Limited>),
}

/// A limit that is counted.
#[derive(Debug)]
pub(crate) struct Limited {
    pub(crate) requests_per_unit: u32,
    pub(crate) unit: Unit,
    pub(crate) policy: Policy,
}

/// A quota as envoyproxy/ratelimit understands it: windows are multiples of the unit since 1970.
pub(crate) fn quota(requests_per_unit: u32, unit: Unit, algorithm: Algorithm) -> Result<Quota, QuotaError> {
    Ok(Quota::new(requests_per_unit.into(), unit.window())?.with_algorithm(algorithm))
}

/// The name of the policy for the descriptor at `path`, which is as long as somebody makes it and may hold anything.
pub(super) fn policy_name(path: &str) -> String {
    if path.len() <= MAX_NAME_BYTES && !path.chars().any(char::is_control) {
        return path.to_owned();
    }
    hashed_name(path, path)
}

/// The beginning of `path`, and a hash of what makes it unlike any other.
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
    fn any_path_gives_the_name_of_a_policy_and_no_two_the_same() {
        let long = "ä".repeat(300);
        for path in ["a.b_c", "a.b\n", &long, &format!("{long}b"), "\u{7}"] {
            assert!(Policy::new(&policy_name(path), [Quota::new(1, Unit::Day.window()).unwrap()]).is_ok());
        }
        assert_eq!(policy_name("a.b_c"), "a.b_c");
        assert_ne!(policy_name(&long), policy_name(&format!("{long}b")));
        assert_ne!(policy_name("a\n"), policy_name("a\t"));
    }
}
