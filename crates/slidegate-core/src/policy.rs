//! A policy: a named list of quotas that are decided together.

use std::hash::{BuildHasher, RandomState};
use std::num::NonZeroU32;
use std::sync::{Arc, LazyLock};

use crate::check::Check;
use crate::quota::{Quota, QuotaError};

/// The most quotas in one policy.
pub const MAX_QUOTAS: usize = 16;
/// The longest name of a policy or a quota, in bytes.
pub const MAX_NAME_BYTES: usize = 256;

/// Quotas that one key meets together: a request spends from all of them or from none.
///
/// Counts belong to the policy's *name* and the key, not to the numbers, so that a limit can be changed while
/// it runs: build a policy of the same name with other quotas and go on.
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
    /// A policy whose quotas are called by their limit and window, `100/1m`.
    pub fn new(name: &str, quotas: impl IntoIterator<Item = Quota>) -> Result<Self, QuotaError> {
        Self::with_names(name, quotas.into_iter().map(|quota| (quota.label(), quota)))
    }

    /// A policy of quotas written as text.
    pub fn parse<'a>(name: &str, quotas: impl IntoIterator<Item = &'a str>) -> Result<Self, QuotaError> {
        let quotas = quotas.into_iter().map(str::parse).collect::<Result<Vec<Quota>, _>>()?;
        Self::new(name, quotas)
    }

    /// A policy without a name of its own: the whole text of its quotas is its name, so that the same quotas, in
    /// whichever order, always mean the same counts.
    pub fn anonymous(quotas: impl IntoIterator<Item = Quota>) -> Result<Self, QuotaError> {
        Self::anonymous_with_names(quotas.into_iter().map(|quota| (quota.label(), quota)))
    }

    /// A policy without a name of its own whose quotas have names. What they are called does not change what
    /// is counted.
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

    /// A policy whose quotas have names of their own.
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

    /// Whether the name was made of the quotas. Counts of such a policy are apart from those of one that was given the
    /// same name.
    pub fn is_anonymous(&self) -> bool {
        self.naming == Naming::ByQuotas
    }

    /// 128 bits that stand for the policy's counts within this process: for its name, and for whether that was given or
    /// made of the quotas.
    #[inline]
    pub fn digest(&self) -> [u64; 2] {
        self.digest
    }

    /// The quotas, at least one.
    #[inline]
    pub fn quotas(&self) -> &[Quota] {
        &self.quotas
    }

    /// The quotas, for whoever keeps them longer than the policy.
    pub fn shared_quotas(&self) -> &Arc<[Quota]> {
        &self.quotas
    }

    /// Other quotas to try beside those of the policy of this name: counted apart from it and from every policy that could be
    /// given a name.
    pub fn candidate_for(name: &str, quotas: impl IntoIterator<Item = Quota>) -> Result<Self, QuotaError> {
        let naming = Naming::Candidate;
        let policy = Self::new(name, quotas)?;
        Ok(Self { naming, digest: digest(naming, name), ..policy })
    }

    /// What tells kinds of names apart that may read the same: 0 for a name that was given, 1 for one made of quotas, 2
    /// for a candidate's.
    pub fn kind(&self) -> u8 {
        match self.naming {
            Naming::Given => 0,
            Naming::ByQuotas => 1,
            Naming::Candidate => 2,
        }
    }

    /// The part of each quota that one of `nodes` may give away by itself, so that together they give about as much as the
    /// policy does: the limit divided by their number, at least 1 unless it is 0.
    pub fn share(&self, nodes: NonZeroU32) -> Self {
        let quotas = self.quotas.iter().map(|quota| quota.share(nodes)).collect();
        Self { quotas, ..self.clone() }
    }

    /// One request of `key` under this policy, at a cost of 1.
    #[inline]
    pub fn key<'a, K: AsRef<[u8]> + ?Sized>(&'a self, key: &'a K) -> Check<'a> {
        Check { policy: self, key: key.as_ref(), cost: 1 }
    }

    /// The name of the quota at `index`.
    pub fn quota_name(&self, index: usize) -> &str {
        &self.quota_names[index]
    }
}

/// Where a name comes from: those of one kind never meet those of another, even if they read the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Naming {
    Given,
    ByQuotas,
    /// By the policy beside which it is tried.
    Candidate,
}

/// Seeded anew in each process, so that nobody outside can work out keys that undo the difference between two
/// policies.
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

    fn refusal(result: Result<Policy, QuotaError>) -> String {
        result.unwrap_err().to_string()
    }

    #[test]
    fn a_policy_that_exists_is_valid() {
        assert_eq!(refusal(Policy::parse("api", [])), "quotas: none given; 1 to 16 are allowed");
        let many: Vec<String> = (1..=17).map(|limit| format!("{limit}/1s")).collect();
        assert_eq!(
            refusal(Policy::parse("api", many.iter().map(String::as_str))),
            "quotas: more than 16; 1 to 16 are allowed"
        );
        assert!(refusal(Policy::parse("", ["1/s"])).starts_with("policy: a name has 1 to 256 bytes"));
        assert!(refusal(Policy::parse("a\nb", ["1/s"])).starts_with("policy: "));
        assert!(
            refusal(Policy::parse("api", ["1/s", "1/1s"]))
                .starts_with("quotas: two quotas are called \"1/1s\"")
        );
    }

    #[test]
    fn a_share_is_the_limit_divided_and_at_least_one() {
        let policy = Policy::parse("api", ["10/1s", "2/1m", "9/1h token-bucket burst=30"]).unwrap();
        let share = policy.share(NonZeroU32::new(3).unwrap());
        let numbers: Vec<_> = share.quotas().iter().map(|quota| (quota.limit(), quota.capacity())).collect();
        assert_eq!(numbers, [(3, 3), (1, 1), (3, 10)]);
        assert_eq!((share.digest(), share.quota_name(1)), (policy.digest(), "2/1m"));
        assert_eq!(policy.share(NonZeroU32::MIN), policy);
    }

    #[test]
    fn anonymous_policies_are_told_apart_by_everything_that_counts() {
        let name = |text: &str| Policy::anonymous([text.parse().unwrap()]).unwrap().name().to_owned();
        assert_eq!(name("1/60s"), name("1/1m"));
        assert_ne!(name("1/1m"), name("1/1m strict-window"));
        let both = |a: &str, b: &str| Policy::anonymous([a.parse().unwrap(), b.parse().unwrap()]).unwrap();
        assert_eq!(both("1/1m", "2/1h").digest(), both("2/1h", "1/1m").digest(), "in whichever order");
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
