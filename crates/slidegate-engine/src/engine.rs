//! The engine: decides operations over a store, and records the decisions. All listeners share it.

use std::sync::Arc;

use arc_swap::ArcSwap;
use slidegate::store::{Operation, Responses, Store};
use slidegate::{Check, Clock, Decision, StoreError, Verb};
use slidegate_config::{Tokens, ViolationLog};
use tokio::sync::Semaphore;
use tracing::{Instrument, Span, info};

use crate::authenticator::Authenticator;
use crate::envoy_limits::EnvoyLimits;
use crate::heavy_hitters::{HeavyHitters, Hit};
use crate::policies::Policies;
use crate::rates::RatePolicies;
use crate::readiness::Readiness;
use crate::request::{Rejection, RejectionKind, UncheckedRequest};
use crate::selection::{Decided, Prepared, Selection};
use crate::violations::Violations;

/// A store, the policies and tokens in force, and the records of decisions.
#[derive(Debug)]
pub struct Engine<S> {
    store: S,
    policies: ArcSwap<Policies>,
    envoy: ArcSwap<EnvoyLimits>,
    rates: RatePolicies,
    violations: Violations,
    heavy_hitters: HeavyHitters,
    tokens: Arc<Authenticator>,
    readiness: Readiness,
    store_span: fn() -> Span,
}

impl<S: Store> Engine<S> {
    /// Creates an engine over `store`.
    pub fn new(store: S, policies: impl Into<Policies>) -> Self {
        Self {
            store,
            policies: ArcSwap::from_pointee(policies.into()),
            envoy: ArcSwap::default(),
            rates: RatePolicies::default(),
            violations: Violations::new(ViolationLog::default()),
            heavy_hitters: HeavyHitters::default(),
            tokens: Arc::new(Authenticator::new(Tokens::default())),
            readiness: Readiness::default(),
            store_span: Span::none,
        }
    }

    /// Sets the tokens of clients. Without tokens, every client may request decisions.
    #[must_use]
    pub fn with_tokens(self, tokens: Tokens) -> Self {
        Self { tokens: Arc::new(Authenticator::new(tokens)), ..self }
    }

    /// Sets the log of denials.
    #[must_use]
    pub fn with_violation_log(self, log: ViolationLog) -> Self {
        Self { violations: Violations::new(log), ..self }
    }

    /// Sets the span in which a remote store is called.
    #[must_use]
    pub fn with_store_span(self, store_span: fn() -> Span) -> Self {
        Self { store_span, ..self }
    }

    /// Executes operations in one call of the store, and records their decisions. Every protocol decides by this function.
    ///
    /// Over an immediate store the future is ready when it is first polled.
    pub async fn decide(&self, prepared: &[Prepared<'_>]) -> Responses {
        let responses = match prepared {
            [] => return Responses::default(),
            [only] => self.call_store(&[only.operation]).await,
            many => {
                let operations: Vec<_> = many.iter().map(|prepared| prepared.operation).collect();
                self.call_store(&operations).await
            }
        };
        let finish = |(prepared, response): (&Prepared<'_>, Result<Decision, StoreError>)| {
            let decision = response?;
            let decision = if prepared.is_shadow { decision.in_shadow() } else { decision };
            if prepared.is_recorded() {
                self.record(prepared, &decision);
            }
            Ok(decision)
        };
        prepared.iter().zip(responses).map(finish).collect()
    }

    /// Selects the policy of a request and decides it.
    pub async fn decide_request<'a>(
        &self,
        verb: Verb,
        request: &'a UncheckedRequest<'_>,
    ) -> Result<Decided<'a>, Rejection> {
        let selection = self.select(verb, request)?;
        let decision = self.decide(&[selection.prepared()]).await.into_single()?;
        Ok(Decided { selection, decision })
    }

    async fn call_store(&self, operations: &[Operation<'_>]) -> Responses {
        if self.store.is_immediate() {
            return self.store.execute(operations).await;
        }
        self.store.execute(operations).instrument((self.store_span)()).await
    }

    /// Counts a decision, and logs it if it is a denial.
    fn record(&self, prepared: &Prepared<'_>, decision: &Decision) {
        prepared.metrics.count(decision);
        let check: &Check<'_> = &prepared.operation.check;
        let (now_ms, is_denied) = (self.clock().now_ms(), !decision.is_allowed());
        let is_shadow_denied = || decision.shadow().is_some_and(|shadow| !shadow.is_allowed());
        let policy = (!check.policy.is_anonymous()).then(|| check.policy.name());
        let hit = Hit { policy, key: check.key, is_denied: is_denied || is_shadow_denied() };
        self.heavy_hitters.count(&hit, now_ms);
        if is_denied {
            self.violations.log(check, decision, prepared.path, now_ms);
        }
    }

    /// Clears the counts of all keys under the policy called `name`. Returns the number of keys if the store counts them.
    pub async fn forget(&self, name: &str) -> Result<Option<u64>, Rejection> {
        /// A store may visit all of its keys, so one policy is reset at a time.
        static FORGETTING: Semaphore = Semaphore::const_new(1);
        let policy = self.policies.load().entry(name)?.policy.clone();
        let busy = || {
            Rejection::new(
                RejectionKind::Busy,
                "another policy reset is in progress; retry when it is complete",
            )
        };
        let _permit = FORGETTING.try_acquire().map_err(|_| busy())?;
        let keys = self.store.forget(&policy).instrument((self.store_span)()).await?;
        info!(policy = name, keys, "cleared the counts of a policy");
        Ok(keys)
    }

    /// Returns the store's clock.
    pub fn clock(&self) -> &dyn Clock {
        self.store.clock()
    }
}

impl<S> Engine<S> {
    /// Returns the store.
    pub fn store(&self) -> &S {
        &self.store
    }

    /// Returns the authenticator of clients.
    pub fn tokens(&self) -> &Arc<Authenticator> {
        &self.tokens
    }

    /// Returns the conditions that the readiness probe reports.
    pub fn readiness(&self) -> &Readiness {
        &self.readiness
    }

    /// Returns the policies in force.
    pub fn policies(&self) -> Arc<Policies> {
        self.policies.load_full()
    }

    /// Replaces the policies. A request is decided by the policies in force when it arrives.
    pub fn set_policies(&self, policies: Policies) {
        self.policies.store(Arc::new(policies));
    }

    /// Selects the policy of a request and validates its values.
    pub fn select<'a>(
        &self,
        verb: Verb,
        request: &'a UncheckedRequest<'_>,
    ) -> Result<Selection<'a>, Rejection> {
        self.policies.load().select(verb, request)
    }

    /// Returns the limits of Envoy's descriptors.
    pub fn envoy(&self) -> Arc<EnvoyLimits> {
        self.envoy.load_full()
    }

    /// Replaces the limits of Envoy's descriptors.
    pub fn set_envoy(&self, limits: EnvoyLimits) {
        self.envoy.store(Arc::new(limits));
    }

    /// Returns the policies of rates that come with requests.
    pub fn rates(&self) -> &RatePolicies {
        &self.rates
    }

    /// Returns the sketch of the busiest and the most denied keys.
    pub fn heavy_hitters(&self) -> &HeavyHitters {
        &self.heavy_hitters
    }

    /// Returns the log of denials, which also decides how logs name keys.
    pub fn violations(&self) -> &Violations {
        &self.violations
    }
}
