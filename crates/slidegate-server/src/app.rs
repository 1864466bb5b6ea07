//! What every protocol calls: requests in, decisions out.

pub(crate) mod operation;

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use arc_swap::{ArcSwap, ArcSwapOption};
use axum::http::HeaderMap;
use slidegate::tower::{HeaderStyle, Tier};
use slidegate::{
    Check, Clock, Decision, MAX_WINDOW_MS, Operation, Policy, Responses, Store, StoreError, Verb,
};
use slidegate_config::{MAX_KEY_BYTES, NamedQuota, QuotaProblem, QuotaSpec, Tokens, ViolationLog};
use tokio::sync::{Semaphore, watch};
use tracing::info;

use crate::authenticator::Authenticator;
use crate::envoy_limits::EnvoyLimits;
use crate::heavy_hitters::{HeavyHitters, Hit};
use crate::json_fragments::PolicyFragments;
use crate::policies::{Policies, PolicyView};
use crate::policy_metrics::{IN_REQUEST_METRICS, PolicyMetrics};
use crate::request::{Batch, Rejection, RejectionKind, Request};
use crate::throttle::RatePolicies;
use crate::traces;
use crate::violations::Violations;

/// A store and the policies that are decided over it.
#[derive(Debug)]
pub struct App<S> {
    store: S,
    policies: ArcSwap<Policies>,
    envoy: ArcSwap<EnvoyLimits>,
    config_error: ArcSwapOption<String>,
    stopping: watch::Sender<bool>,
    violations: Violations,
    heavy_hitters: HeavyHitters,
    are_changes_known: AtomicBool,
    tokens: Arc<Authenticator>,
    rate_policies: RatePolicies,
}

/// A decision and the policy under which it was made.
#[derive(Debug)]
pub struct Decided {
    chosen: SelectedPolicy,
    verb: Verb,
    /// The decision.
    pub decision: Decision,
}

/// The policy of a request.
#[derive(Debug)]
pub(crate) enum SelectedPolicy {
    Configured(Arc<PolicyView>),
    FromRequest(Policy, HeaderStyle),
}

#[cfg(test)]
impl Decided {
    pub(crate) fn configured(policy: Policy, decision: Decision) -> Self {
        let policy_metrics = Arc::new(PolicyMetrics::for_policy(&policy, "", 0, None));
        let named = PolicyView::new(policy, HeaderStyle::default(), policy_metrics);
        Self { chosen: SelectedPolicy::Configured(Arc::new(named)), verb: Verb::Check, decision }
    }

    pub(crate) fn from_request(policy: Policy, decision: Decision) -> Self {
        Self {
            chosen: SelectedPolicy::FromRequest(policy, HeaderStyle::default()),
            verb: Verb::Check,
            decision,
        }
    }

    pub(crate) fn by_verb(self, verb: Verb) -> Self {
        Self { verb, ..self }
    }

    pub(crate) fn into_chosen(self) -> SelectedPolicy {
        self.chosen
    }
}

impl Decided {
    /// What was done.
    pub fn verb(&self) -> Verb {
        self.verb
    }

    /// The policy, whose quotas are those of the decision.
    pub fn policy(&self) -> &Policy {
        self.chosen.policy()
    }

    /// What its answers have in common.
    pub(crate) fn json_fragments(&self) -> Cow<'_, PolicyFragments> {
        match &self.chosen {
            SelectedPolicy::Configured(named) => Cow::Borrowed(&named.json_fragments),
            SelectedPolicy::FromRequest(policy, _) => Cow::Owned(PolicyFragments::new(policy, None)),
        }
    }

    /// The policy's name; none if its quotas came with the request.
    pub fn policy_name(&self) -> Option<&str> {
        match &self.chosen {
            SelectedPolicy::Configured(named) => Some(named.policy().name()),
            SelectedPolicy::FromRequest(..) => None,
        }
    }

    /// Puts what the decision says into the headers of an answer, in the style that goes with the policy.
    pub(crate) fn write_headers(&self, headers: &mut HeaderMap, clock: &dyn Clock) {
        self.in_style(clock, |style, tier, now_ms| style.write(headers, tier, &self.decision, now_ms));
    }

    /// The same as lines of a head.
    pub(crate) fn write_header_lines(&self, head: &mut Vec<u8>, clock: &dyn Clock) {
        self.in_style(clock, |style, tier, now_ms| style.write_lines(head, tier, &self.decision, now_ms));
    }

    fn in_style(&self, clock: &dyn Clock, write: impl FnOnce(HeaderStyle, &Tier, u64)) {
        let of_request;
        let (style, tier) = match &self.chosen {
            SelectedPolicy::Configured(named) => (named.headers, &named.tier),
            SelectedPolicy::FromRequest(policy, style) => {
                of_request = Tier::new(policy.clone());
                (*style, &of_request)
            }
        };
        let now_ms = if style == HeaderStyle::LegacyEpoch { clock.now_ms() } else { 0 };
        write(style, tier, now_ms);
    }
}

impl SelectedPolicy {
    pub(crate) fn policy(&self) -> &Policy {
        match self {
            Self::Configured(named) => named.policy(),
            Self::FromRequest(policy, _) => policy,
        }
    }

    fn policy_metrics(&self) -> &PolicyMetrics {
        match self {
            Self::Configured(named) => &named.policy_metrics,
            Self::FromRequest(..) => &IN_REQUEST_METRICS,
        }
    }
}

/// An operation whose policy is known, with the data that its decision is recorded by.
#[derive(Debug)]
pub(crate) struct Prepared<'a> {
    pub(crate) operation: Operation<'a>,
    pub(crate) policy_metrics: &'a PolicyMetrics,
    /// Whether a denial is reported but not enforced.
    pub(crate) is_shadow: bool,
    /// Whether a peek is recorded as a check is, because its cost is charged later.
    pub(crate) records_peek: bool,
    /// Path of the request that a proxy decides about, for the log.
    pub(crate) path: Option<&'a str>,
}

impl<'a> Prepared<'a> {
    /// Returns an operation that is enforced and recorded if it is a check.
    pub(crate) fn new(operation: Operation<'a>, policy_metrics: &'a PolicyMetrics) -> Self {
        Self { operation, policy_metrics, is_shadow: false, records_peek: false, path: None }
    }

    fn is_recorded(&self) -> bool {
        let verb = self.operation.verb;
        verb == Verb::Check || (self.records_peek && verb == Verb::Peek)
    }
}

impl<S> App<S> {
    /// The store.
    pub fn store(&self) -> &S {
        &self.store
    }

    /// Who may ask for decisions.
    pub fn tokens(&self) -> &Arc<Authenticator> {
        &self.tokens
    }

    /// The policies of rates that come with requests.
    pub(crate) fn rate_policies(&self) -> &RatePolicies {
        &self.rate_policies
    }

    /// Who stands out.
    pub(crate) fn heavy_hitters(&self) -> &HeavyHitters {
        &self.heavy_hitters
    }

    /// What logs denials, and knows how keys are written into a log.
    pub(crate) fn violations(&self) -> &Violations {
        &self.violations
    }

    /// The same, with tokens that whoever asks for decisions has to show.
    pub fn admitting(mut self, tokens: Tokens) -> Self {
        self.tokens = Arc::new(Authenticator::new(tokens));
        self
    }

    /// The policies that requests may name now.
    pub fn policies(&self) -> Arc<Policies> {
        self.policies.load_full()
    }

    /// Whether it takes no new requests.
    pub fn is_stopping(&self) -> bool {
        *self.stopping.borrow()
    }

    /// From now on it takes no new requests.
    pub fn stop(&self) {
        self.stopping.send_replace(true);
    }

    /// Done when it takes no new requests.
    pub(crate) fn stopped(&self) -> impl Future<Output = ()> + Send + 'static {
        let mut stopping = self.stopping.subscribe();
        async move {
            let _ = stopping.wait_for(|is_stopping| *is_stopping).await;
        }
    }

    /// The limits that Envoy's descriptors meet.
    pub(crate) fn envoy(&self) -> Arc<EnvoyLimits> {
        self.envoy.load_full()
    }

    /// Changes them, for all requests from now on.
    pub(crate) fn set_envoy(&self, limits: EnvoyLimits) {
        self.envoy.store(Arc::new(limits));
    }

    /// Why the file that is there is not the one in force.
    pub fn config_error(&self) -> Option<String> {
        self.config_error.load().as_deref().cloned()
    }

    /// Whether it is known what operators have changed.
    pub fn are_changes_known(&self) -> bool {
        self.are_changes_known.load(Relaxed)
    }

    /// Says so.
    pub(crate) fn set_changes_known(&self, are_known: bool) {
        self.are_changes_known.store(are_known, Relaxed);
    }

    /// Says so, or that it is.
    pub fn set_config_error(&self, error: Option<String>) {
        self.config_error.store(error.map(Arc::new));
    }
}

impl<S: Store> App<S> {
    /// An app that counts in `store`.
    pub fn new(store: S, policies: impl Into<Policies>) -> Self {
        Self {
            store,
            policies: ArcSwap::from_pointee(policies.into()),
            envoy: ArcSwap::default(),
            config_error: ArcSwapOption::empty(),
            stopping: watch::Sender::new(false),
            violations: Violations::new(ViolationLog::default()),
            heavy_hitters: HeavyHitters::default(),
            are_changes_known: AtomicBool::new(true),
            tokens: Arc::new(Authenticator::new(Tokens::default())),
            rate_policies: RatePolicies::default(),
        }
    }

    /// Whether there is any policy that requests may name.
    pub fn has_policies(&self) -> bool {
        self.policies.load().names().len() > 0
    }

    /// The same, with another log of denials.
    pub fn logging(mut self, log: ViolationLog) -> Self {
        self.violations = Violations::new(log);
        self
    }

    /// Changes the policies that requests may name. A request is decided by those that there were when it came.
    pub fn set_policies(&self, policies: Policies) {
        self.policies.store(Arc::new(policies));
    }

    /// The store's clock.
    pub fn clock(&self) -> &dyn Clock {
        self.store.clock()
    }

    /// Executes operations in one call of the store, and counts and logs their decisions. All protocols decide by this
    /// function.
    pub(crate) async fn execute(&self, prepared: &[Prepared<'_>]) -> Responses {
        let responses = match prepared {
            [] => return Responses::default(),
            [only] => self.call_store(&[only.operation]).await,
            many => {
                let operations: Vec<_> = many.iter().map(|prepared| prepared.operation).collect();
                self.call_store(&operations).await
            }
        };
        let record = |(prepared, response): (&Prepared<'_>, Result<Decision, StoreError>)| {
            let decision = response?;
            let decision = if prepared.is_shadow { decision.in_shadow() } else { decision };
            if prepared.is_recorded() {
                self.record(prepared, &decision);
            }
            Ok(decision)
        };
        prepared.iter().zip(responses).map(record).collect()
    }

    async fn call_store(&self, operations: &[Operation<'_>]) -> Responses {
        if self.store.is_immediate() {
            return self.store.execute(operations).await;
        }
        traces::in_span(traces::store_span(), self.store.execute(operations)).await
    }

    /// Counts a decision, and logs it if it is a denial.
    fn record(&self, prepared: &Prepared<'_>, decision: &Decision) {
        prepared.policy_metrics.count(decision);
        let check = &prepared.operation.check;
        let (now_ms, is_denied) = (self.clock().now_ms(), !decision.is_allowed());
        let would_be = || decision.shadow().is_some_and(|shadow| !shadow.is_allowed());
        let policy = (!check.policy.is_anonymous()).then(|| check.policy.name());
        self.heavy_hitters.count(&Hit { policy, key: check.key, is_denied: is_denied || would_be() }, now_ms);
        if is_denied {
            self.violations.log(check, decision, prepared.path, now_ms);
        }
    }

    /// Decides one request.
    pub async fn decide(&self, verb: Verb, request: &Request<'_>) -> Result<Decided, Rejection> {
        let chosen = choose(&self.policies.load(), request)?;
        let check = check(verb, request, &chosen)?;
        let prepared = Prepared {
            path: request.path.as_deref(),
            ..Prepared::new(Operation { verb, check }, chosen.policy_metrics())
        };
        let decision = self.execute(&[prepared]).await.into_single()?;
        Ok(Decided { chosen, verb, decision })
    }

    /// Forgets what all keys have spent under the policy called `name`. Returns how many keys that were, where the store counts
    /// them.
    pub async fn forget(&self, name: &str) -> Result<Option<u64>, Rejection> {
        /// A store may have to look at all of its keys, so one policy is forgotten at a time.
        static FORGETTING: Semaphore = Semaphore::const_new(1);
        let policy = self.policies.load().entry(name)?.policy.clone();
        let busy = || {
            Rejection::new(RejectionKind::Busy, "a policy is being forgotten: try again when that is done")
        };
        let _turn = FORGETTING.try_acquire().map_err(|_| busy())?;
        let keys = traces::in_span(traces::store_span(), self.store.forget(&policy)).await?;
        info!(policy = name, keys, "all keys of a policy were forgotten");
        Ok(keys)
    }

    /// What each of a batch is to be decided by.
    pub(crate) fn choose_many(
        &self,
        verb: Verb,
        batch: &Batch<'_>,
    ) -> Vec<Result<SelectedPolicy, Rejection>> {
        let policies = self.policies.load();
        batch.0.iter().map(|request| choose_for(&policies, verb, request)).collect()
    }

    /// Decides some of a batch by what was chosen for each, in one call of the store and each for itself.
    pub(crate) async fn decide_many(
        &self,
        verb: Verb,
        requests: &[Result<Request<'_>, Rejection>],
        chosen: Vec<Result<SelectedPolicy, Rejection>>,
    ) -> Vec<Result<Decided, Rejection>> {
        let mut prepared = Vec::with_capacity(chosen.len());
        for (request, chosen) in requests.iter().zip(&chosen) {
            if let (Ok(request), Ok(chosen)) = (request, chosen)
                && let Ok(check) = check(verb, request, chosen)
            {
                prepared.push(Prepared::new(Operation { verb, check }, chosen.policy_metrics()));
            }
        }
        let decisions = self.execute(&prepared).await;
        let mut decisions = decisions.into_iter();
        let mut decided = Vec::with_capacity(chosen.len());
        for chosen in chosen {
            decided.push(match chosen {
                Err(rejection) => Err(rejection),
                Ok(chosen) => match decisions.next() {
                    Some(decision) => {
                        decision.map(|decision| Decided { chosen, verb, decision }).map_err(Rejection::from)
                    }
                    None => break,
                },
            });
        }
        decided
    }
}

/// What a request would be decided by.
#[derive(Debug)]
pub(crate) struct Preview {
    pub(crate) policy: Policy,
    pub(crate) cost: u64,
    pub(crate) headers: HeaderStyle,
}

/// Looks at a request as if to decide it.
pub(crate) fn preview(policies: &Policies, request: &Request<'_>) -> Result<Preview, Rejection> {
    let chosen = choose(policies, request)?;
    let cost = check(Verb::Check, request, &chosen)?.cost;
    let headers = match &chosen {
        SelectedPolicy::Configured(named) => named.headers,
        SelectedPolicy::FromRequest(_, headers) => *headers,
    };
    Ok(Preview { policy: chosen.policy().clone(), cost, headers })
}

/// What a request of a batch is decided by, if all that it says is valid.
fn choose_for(
    policies: &Policies,
    verb: Verb,
    request: &Result<Request<'_>, Rejection>,
) -> Result<SelectedPolicy, Rejection> {
    let request = request.as_ref().map_err(Rejection::clone)?;
    let chosen = choose(policies, request)?;
    check(verb, request, &chosen)?;
    Ok(chosen)
}

fn choose(policies: &Policies, request: &Request<'_>) -> Result<SelectedPolicy, Rejection> {
    match (&request.policy, &request.quotas) {
        (Some(name), None) => {
            let found = policies.find(name, request.tier.as_deref(), request.key.as_deref());
            found.map(|named| SelectedPolicy::Configured(Arc::clone(named)))
        }
        (None, Some(_)) if request.tier.is_some() => {
            Err(Rejection::out_of_range("tier", "goes with policy, not with quotas"))
        }
        (None, Some(quotas)) => {
            policy_of(quotas).map(|policy| SelectedPolicy::FromRequest(policy, policies.headers()))
        }
        (Some(_), Some(_)) => Err(one_of_both("both are given")),
        (None, None) => Err(one_of_both("neither is given")),
    }
}

/// The policy of quotas that come with a request.
pub(crate) fn policy_of(quotas: &[QuotaSpec]) -> Result<Policy, Rejection> {
    let mut named = Vec::with_capacity(quotas.len());
    for (index, quota) in quotas.iter().enumerate() {
        named.push(quota.build().map_err(|problems| quota_rejection(index, &problems))?);
    }
    let named = named.into_iter().map(|NamedQuota { name, quota }| (name, quota));
    Policy::anonymous_with_names(named).map_err(|error| Rejection::out_of_range("quotas", error.message()))
}

fn one_of_both(what_is: &str) -> Rejection {
    Rejection::out_of_range("policy", format!("{what_is}; give exactly one of policy and quotas"))
}

pub(crate) fn quota_rejection(index: usize, problems: &[QuotaProblem]) -> Rejection {
    let Some(problem) = problems.first() else { return one_of_both("quotas is not valid") };
    let field = match problem.field {
        Some(field) => format!("quotas[{index}].{field}"),
        None => format!("quotas[{index}]"),
    };
    Rejection::out_of_range(field, problem.message.as_str())
}

fn check<'a>(
    verb: Verb,
    request: &'a Request<'_>,
    chosen: &'a SelectedPolicy,
) -> Result<Check<'a>, Rejection> {
    let key = request.key.as_deref().unwrap_or_default();
    if !(1..=MAX_KEY_BYTES).contains(&key.len()) {
        let found = if request.key.is_none() { "missing".to_owned() } else { format!("{} bytes", key.len()) };
        return Err(Rejection::out_of_range(
            "key",
            format!("{found}; 1 to {MAX_KEY_BYTES} bytes are allowed"),
        ));
    }
    Ok(chosen.policy().key(key).cost(cost(verb, request)?))
}

/// How much a request costs; the cost of a block is its length.
fn cost(verb: Verb, request: &Request<'_>) -> Result<u64, Rejection> {
    let refused = |field: &'static str| move |message: String| Rejection::out_of_range(field, message);
    match (verb, request.cost, request.for_ms) {
        (Verb::Block, Some(_), _) => {
            Err(refused("cost")("does not go with a block, which takes for_ms".to_owned()))
        }
        (Verb::Block, None, None) => Err(refused("for_ms")(format!(
            "is missing; it takes 1 to {MAX_WINDOW_MS} milliseconds (366 days)"
        ))),
        (Verb::Block, None, Some(for_ms)) => for_ms.checked().map_err(refused("for_ms")),
        (_, _, Some(_)) => Err(refused("for_ms")("goes with a block alone".to_owned())),
        (_, Some(cost), None) => cost.checked().map_err(refused("cost")),
        (_, None, None) => Ok(1),
    }
}

impl From<StoreError> for Rejection {
    fn from(error: StoreError) -> Self {
        let kind = RejectionKind::StoreUnavailable {
            is_transient: error.is_transient(),
            may_have_counted: error.may_have_counted(),
        };
        Self::new(kind, error.to_string())
    }
}
