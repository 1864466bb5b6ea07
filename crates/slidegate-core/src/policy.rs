//! A policy: a named list of quotas that are decided together.

use std::hash::{BuildHasher, RandomState};
use std::num::NonZeroU32;
use std::sync::{Arc, LazyLock};

use crate::quota::{Quota, QuotaError};

/// Maximum number of quotas in a policy.
pub const MAX_QUOTAS: usize = 16;
/// Maximum length of the name of a policy or a quota, in bytes.
pub const MAX_NAME_BYTES: usize = 256;

/// Quotas that apply to a key together: a request spends from all of them or from none.
///
/// Counts belong to the *name* of the policy and the key, not to the limits. To change a limit at run time, build a policy with
/// the same name and other quotas.
///
/// ```
/// use slidegate_core::Policy;
///
/// let policy = Policy::parse("api", ["10/1s", "1000/1h"])?;
/// assert_eq!(policy.quotas().len(), 2);
/// assert_eq!(policy.quota_name(1), "1000/1h");
/// # Ok::<(), slidegate_core::QuotaError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    name: Box<str>,
    naming: Naming,
    digest: [u64; 2],
    quotas: Arc<[Quota]>,
    quota_names: Box<[Box<str>]>,
}

impl Policy {
    /// Returns a policy whose quotas are named after their limit and window, such as `100/1m`.
    pub fn new(name: &str, quotas: impl IntoIterator<Item = Quota>) -> Result<Self, QuotaError> {
        Self::with_names(name, quotas.into_iter().map(|quota| (quota.label(), quota)))
    }

    /// Parses the quotas of a policy.
    pub fn parse<'a>(name: &str, quotas: impl IntoIterator<Item = &'a str>) -> Result<Self, QuotaError> {
        let quotas = quotas.into_iter().map(str::parse).collect::<Result<Vec<Quota>, _>>()?;
        Self::new(name, quotas)
    }

    /// Returns a policy that is named after its quotas. The same quotas, in any order, always share the same counts.
    pub fn anonymous(quotas: impl IntoIterator<Item = Quota>) -> Result<Self, QuotaError> {
        Self::anonymous_with_names(quotas.into_iter().map(|quota| (quota.label(), quota)))
    }

    /// Returns an anonymous policy with named quotas. The names of the quotas do not affect the counts.
    pub fn anonymous_with_names<N: Into<String>>(
        quotas: impl IntoIterator<Item = (N, Quota)>,
    ) -> Result<Self, QuotaError> {
        let (quota_names, quotas) = named_quotas(quotas)?;
        let mut texts: Vec<String> = quotas.iter().map(Quota::to_string).collect();
        texts.sort_unstable();
        let name = texts.join(" + ");
        let naming = Naming::ByQuotas;
        Ok(Self { naming, digest: digest(naming, &name), name: name.into(), quotas, quota_names })
    }

    /// Returns a policy with named quotas.
    pub fn with_names<N: Into<String>>(
        name: &str,
        quotas: impl IntoIterator<Item = (N, Quota)>,
    ) -> Result<Self, QuotaError> {
        check_name("policy", name)?;
        let (quota_names, quotas) = named_quotas(quotas)?;
        let naming = Naming::Given;
        Ok(Self { naming, digest: digest(naming, name), name: name.into(), quotas, quota_names })
    }

    /// The name.
    #[inline]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether the policy is named after its quotas. Its counts are separate from those of a policy that was given the same
    /// name.
    pub fn is_anonymous(&self) -> bool {
        self.naming == Naming::ByQuotas
    }

    /// 128 bits that identify the counts of the policy within this process. They depend on the name and on its
    /// [`kind`](Self::kind).
    #[inline]
    pub fn digest(&self) -> [u64; 2] {
        self.digest
    }

    /// The quotas, at least one.
    #[inline]
    pub fn quotas(&self) -> &[Quota] {
        &self.quotas
    }

    /// The quotas, as a shared pointer that can outlive the policy.
    pub fn shared_quotas(&self) -> &Arc<[Quota]> {
        &self.quotas
    }

    /// Returns a candidate for the quotas of the policy of this name. Its counts are separate from those of all other policies.
    pub fn candidate_for(name: &str, quotas: impl IntoIterator<Item = Quota>) -> Result<Self, QuotaError> {
        let naming = Naming::Candidate;
        let policy = Self::new(name, quotas)?;
        Ok(Self { naming, digest: digest(naming, name), ..policy })
    }

    /// The kind of the name, which separates equal names: 0 for a given name, 1 for a name made of the quotas, 2 for a
    /// candidate.
    pub fn kind(&self) -> u8 {
        match self.naming {
            Naming::Given => 0,
            Naming::ByQuotas => 1,
            Naming::Candidate => 2,
        }
    }

    /// Returns the share of one of `nodes`, which together admit about as much as the policy. Each limit is divided by the
    /// number of nodes, and is at least 1 unless it is 0.
    pub fn share(&self, nodes: NonZeroU32) -> Self {
        let quotas = self.quotas.iter().map(|quota| quota.share(nodes)).collect();
        Self { quotas, ..self.clone() }
    }

    /// The name of the quota at `index`, a position in [`quotas`](Self::quotas).
    ///
    /// # Panics
    ///
    /// Panics if the policy has no such quota.
    pub fn quota_name(&self, index: usize) -> &str {
        &self.quota_names[index]
    }
}

/// Origin of a policy's name. Equal names of different origin have separate counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Naming {
    Given,
    ByQuotas,
    /// Named after the policy that it is a candidate for.
    Candidate,
}

/// Hashes a name with seeds of this process, so that a client cannot construct keys that collide under two policies.
fn digest(naming: Naming, name: &str) -> [u64; 2] {
    static SEEDS: LazyLock<[RandomState; 2]> = LazyLock::new(|| [RandomState::new(), RandomState::new()]);
    SEEDS.each_ref().map(|seed| seed.hash_one((naming, name)))
}

type Named = (Box<[Box<str>]>, Arc<[Quota]>);

fn named_quotas<N: Into<String>>(quotas: impl IntoIterator<Item = (N, Quota)>) -> Result<Named, QuotaError> {
    let mut names: Vec<Box<str>> = Vec::new();
    let mut list = Vec::new();
    for (name, quota) in quotas {
        let name: Box<str> = name.into().into();
        check_name("name", &name)?;
        if names.contains(&name) {
            let message = format!(
                "two quotas are called {name:?}: names must differ; leave one out, or give it a name"
            );
            return Err(QuotaError::new("quotas", message));
        }
        names.push(name);
        list.push(quota);
        if list.len() > MAX_QUOTAS {
            return Err(QuotaError::new(
                "quotas",
                format!("more than {MAX_QUOTAS}; 1 to {MAX_QUOTAS} are allowed"),
            ));
        }
    }
    if list.is_empty() {
        return Err(QuotaError::new("quotas", format!("none given; 1 to {MAX_QUOTAS} are allowed")));
    }
    Ok((names.into(), list.into()))
}

fn check_name(field: &'static str, name: &str) -> Result<(), QuotaError> {
    if name.is_empty() || name.len() > MAX_NAME_BYTES || name.chars().any(char::is_control) {
        let message = format!("a name has 1 to {MAX_NAME_BYTES} bytes and no control characters");
        return Err(QuotaError::new(field, message));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(result: Result<Policy, QuotaError>) -> String {
        result.unwrap_err().to_string()
    }

    #[test]
    fn invalid_policies_are_rejected_with_the_reason() {
        assert_eq!(error(Policy::parse("api", [])), "quotas: none given; 1 to 16 are allowed");
        let many: Vec<String> = (1..=17).map(|limit| format!("{limit}/1s")).collect();
        assert_eq!(
            error(Policy::parse("api", many.iter().map(String::as_str))),
            "quotas: more than 16; 1 to 16 are allowed"
        );
        assert!(error(Policy::parse("", ["1/s"])).starts_with("policy: a name has 1 to 256 bytes"));
        assert!(error(Policy::parse("a\nb", ["1/s"])).starts_with("policy: "));
        assert!(
            error(Policy::parse("api", ["1/s", "1/1s"]))
                .starts_with("quotas: two quotas are called \"1/1s\"")
        );
    }

    #[test]
    fn a_share_is_the_limit_divided_by_the_nodes_and_at_least_one() {
        let policy = Policy::parse("api", ["10/1s", "2/1m", "9/1h token-bucket burst=30"]).unwrap();
        let share = policy.share(NonZeroU32::new(3).unwrap());
        let numbers: Vec<_> = share.quotas().iter().map(|quota| (quota.limit(), quota.capacity())).collect();
        assert_eq!(numbers, [(3, 3), (1, 1), (3, 10)]);
        assert_eq!((share.digest(), share.quota_name(1)), (policy.digest(), "2/1m"));
        assert_eq!(policy.share(NonZeroU32::MIN), policy);
    }

    #[test]
    fn policies_of_different_names_kinds_or_quotas_have_different_digests() {
        let name = |text: &str| Policy::anonymous([text.parse().unwrap()]).unwrap().name().to_owned();
        assert_eq!(name("1/60s"), name("1/1m"));
        assert_ne!(name("1/1m"), name("1/1m strict-window"));
        let both = |a: &str, b: &str| Policy::anonymous([a.parse().unwrap(), b.parse().unwrap()]).unwrap();
        assert_eq!(both("1/1m", "2/1h").digest(), both("2/1h", "1/1m").digest(), "the order does not matter");
        assert_ne!(name("1/1m token-bucket"), name("1/1m token-bucket burst=2"));
        let given = Policy::parse("1/1m", ["1/1m"]).unwrap();
        let made = Policy::anonymous([given.quotas()[0]]).unwrap();
        assert_eq!(given.name(), made.name());
        assert_ne!(given.digest(), made.digest());
        let candidate = Policy::candidate_for(given.name(), [given.quotas()[0]]).unwrap();
        assert_eq!((candidate.name(), candidate.kind()), (given.name(), 2));
        assert!(candidate.digest() != given.digest() && candidate.digest() != made.digest());
        let named = Policy::anonymous_with_names([("burst", "1/1m".parse().unwrap())]).unwrap();
        assert_eq!((named.name(), named.quota_name(0)), (&*name("1/1m"), "burst"));
    }
}
