//! Selection of the policy that decides a request.

use std::sync::Arc;

use slidegate::headers::HeaderStyle;
use slidegate::store::Operation;
use slidegate::{Decision, MAX_WINDOW_MS, Policy, Verb};
use slidegate_config::{MAX_KEY_BYTES, NamedQuota, QuotaProblem, QuotaSpec};

use crate::policies::{Policies, PolicyView};
use crate::policy_metrics::{IN_REQUEST_METRICS, PolicyMetrics};
use crate::request::{Rejection, UncheckedRequest};

/// A valid request and its policy.
#[derive(Clone, Debug)]
pub struct Selection<'a> {
    pub policy: SelectedPolicy,
    pub verb: Verb,
    pub key: &'a [u8],
    /// Cost; the length in milliseconds of a block.
    pub cost: u64,
    /// Path of the request that a proxy decides about, for the log.
    pub path: Option<&'a str>,
}

/// Policy of a request.
#[derive(Clone, Debug)]
pub enum SelectedPolicy {
    /// A policy in force.
    Configured(Arc<PolicyView>),
    /// Quotas of the request, and the style of its rate-limit headers.
    FromRequest(Policy, HeaderStyle),
}

/// An operation whose policy is known, with the data that its decision is recorded by.
#[derive(Debug)]
pub struct Prepared<'a> {
    pub operation: Operation<'a>,
    pub metrics: &'a PolicyMetrics,
    /// Whether a denial is reported but not enforced.
    pub is_shadow: bool,
    /// Whether a peek is recorded as a check is, because its cost is charged later.
    pub records_peek: bool,
    /// Path of the request that a proxy decides about, for the log.
    pub path: Option<&'a str>,
}

impl<'a> Prepared<'a> {
    /// Returns an operation that is enforced, and recorded if it is a check.
    pub fn new(operation: Operation<'a>, metrics: &'a PolicyMetrics) -> Self {
        Self { operation, metrics, is_shadow: false, records_peek: false, path: None }
    }

    pub(crate) fn is_recorded(&self) -> bool {
        let verb = self.operation.verb;
        verb == Verb::Check || (self.records_peek && verb == Verb::Peek)
    }
}

/// A request and its decision.
#[derive(Clone, Debug)]
pub struct Decided<'a> {
    pub selection: Selection<'a>,
    pub decision: Decision,
}

impl<'a> Selection<'a> {
    /// Selects a policy in force for a key and a cost that are valid.
    pub fn new(verb: Verb, view: Arc<PolicyView>, key: &'a [u8], cost: u64) -> Self {
        Self { policy: SelectedPolicy::Configured(view), verb, key, cost, path: None }
    }

    /// Returns the operation, ready for [`Engine::decide`](crate::Engine::decide).
    pub fn prepared(&self) -> Prepared<'_> {
        let check = self.policy.policy().key(self.key).cost(self.cost);
        Prepared { path: self.path, ..Prepared::new(Operation::new(self.verb, check), self.policy.metrics()) }
    }
}

impl Decided<'_> {
    /// Returns the policy, whose quotas are those of the decision.
    pub fn policy(&self) -> &Policy {
        self.selection.policy.policy()
    }
}

impl SelectedPolicy {
    /// Returns the policy.
    pub fn policy(&self) -> &Policy {
        match self {
            Self::Configured(view) => view.policy(),
            Self::FromRequest(policy, _) => policy,
        }
    }

    /// Returns the name; `None` if the quotas came with the request.
    pub fn name(&self) -> Option<&str> {
        match self {
            Self::Configured(view) => Some(view.policy().name()),
            Self::FromRequest(..) => None,
        }
    }

    /// Returns the style of rate-limit headers.
    pub fn headers(&self) -> HeaderStyle {
        match self {
            Self::Configured(view) => view.headers(),
            Self::FromRequest(_, headers) => *headers,
        }
    }

    fn metrics(&self) -> &PolicyMetrics {
        match self {
            Self::Configured(view) => view.metrics(),
            Self::FromRequest(..) => &IN_REQUEST_METRICS,
        }
    }
}

impl Policies {
    /// Selects the policy of a request and validates its values.
    pub fn select<'a>(
        &self,
        verb: Verb,
        request: &'a UncheckedRequest<'_>,
    ) -> Result<Selection<'a>, Rejection> {
        let policy = self.policy_of(request)?;
        let key = valid_key(request.key.as_deref().map(str::as_bytes))?;
        let cost = cost(verb, request)?;
        Ok(Selection { policy, verb, key, cost, path: request.path.as_deref() })
    }

    fn policy_of(&self, request: &UncheckedRequest<'_>) -> Result<SelectedPolicy, Rejection> {
        match (&request.policy, &request.quotas) {
            (Some(name), None) => {
                let found = self.find(name, request.tier.as_deref(), request.key.as_deref());
                found.map(|view| SelectedPolicy::Configured(Arc::clone(view)))
            }
            (None, Some(_)) if request.tier.is_some() => {
                Err(Rejection::out_of_range("tier", "is only valid with policy, not with quotas"))
            }
            (None, Some(quotas)) => {
                policy_of_quotas(quotas).map(|policy| SelectedPolicy::FromRequest(policy, self.headers()))
            }
            (Some(_), Some(_)) => Err(not_exactly_one("both are given")),
            (None, None) => Err(not_exactly_one("neither is given")),
        }
    }
}

/// Builds the policy of quotas that come with a request.
pub fn policy_of_quotas(quotas: &[QuotaSpec]) -> Result<Policy, Rejection> {
    let mut named = Vec::with_capacity(quotas.len());
    for (index, quota) in quotas.iter().enumerate() {
        named.push(quota.build().map_err(|problems| quota_rejection(index, &problems))?);
    }
    let named = named.into_iter().map(|NamedQuota { name, quota }| (name, quota));
    Policy::anonymous_with_names(named).map_err(|error| Rejection::out_of_range("quotas", error.message()))
}

fn not_exactly_one(found: &str) -> Rejection {
    Rejection::out_of_range("policy", format!("{found}; give exactly one of policy and quotas"))
}

/// Returns the rejection of the quota at `index`.
pub(crate) fn quota_rejection(index: usize, problems: &[QuotaProblem]) -> Rejection {
    let Some(problem) = problems.first() else { return not_exactly_one("quotas is not valid") };
    let field = match problem.field {
        Some(field) => format!("quotas[{index}].{field}"),
        None => format!("quotas[{index}]"),
    };
    Rejection::out_of_range(field, problem.message.as_str())
}

/// Returns the key if its length is allowed.
pub fn valid_key(key: Option<&[u8]>) -> Result<&[u8], Rejection> {
    match key {
        Some(key) if (1..=MAX_KEY_BYTES).contains(&key.len()) => Ok(key),
        found => {
            let found = found.map_or_else(|| "missing".to_owned(), |key| format!("{} bytes", key.len()));
            let detail = format!("{found}; 1 to {MAX_KEY_BYTES} bytes are allowed");
            Err(Rejection::out_of_range("key", detail))
        }
    }
}

/// Returns the cost of a request; the cost of a block is its length.
fn cost(verb: Verb, request: &UncheckedRequest<'_>) -> Result<u64, Rejection> {
    let rejection = |field: &'static str| move |detail: String| Rejection::out_of_range(field, detail);
    match (verb, request.cost, request.for_ms) {
        (Verb::Block, Some(_), _) => {
            Err(rejection("cost")("is not valid for a block; give for_ms".to_owned()))
        }
        (Verb::Block, None, None) => Err(rejection("for_ms")(format!(
            "is missing; it takes 1 to {MAX_WINDOW_MS} milliseconds (366 days)"
        ))),
        (Verb::Block, None, Some(for_ms)) => for_ms.checked().map_err(rejection("for_ms")),
        (_, _, Some(_)) => Err(rejection("for_ms")("is only valid for a block".to_owned())),
        (_, Some(cost), None) => cost.checked().map_err(rejection("cost")),
        (_, None, None) => Ok(1),
    }
}
