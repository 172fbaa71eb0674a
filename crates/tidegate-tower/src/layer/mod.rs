//! The inbound layer: decides about each request to a service. Imports: extract, headers, key,
//! policy_names, problem.
//!
//! - `settings` holds the settings of a layer; `decide` finds key and cost and calls the limiter;
//!   `admission` turns the decision into a pass or a denial.
//! - `service` and `future` implement tower's traits.
//! - `denial` builds the response to a denied request; `grpc` builds it for gRPC.
//! - `body` holds concurrency slots until the response body ends; `settlement` defines the actual
//!   cost.

mod admission;
mod body;
mod decide;
mod denial;
mod future;
mod grpc;
mod keyed_rule;
mod service;
mod settings;
mod settlement;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::Response;
use http::request::Parts;
use tidegate::policy::{Enforcement, OnMissingKey};
use tidegate::{Fraction, Limiter, Refusal, Rule};
use tower_layer::Layer;

pub use self::body::{LimitedBody, RequestGuard, ResponseBody};
pub use self::denial::{Denial, DenialReason};
pub use self::future::ResponseFuture;
pub use self::keyed_rule::KeyedRule;
pub use self::service::{AnyBody, AnyBodyFuture, RateLimit};
use self::settings::{Decider, HeaderMode, RuleSelection};
pub use self::settings::{DecisionEvent, OnEngineError};
pub use self::settlement::{CostMeter, Settlement};
use crate::extract::TrustedProxies;
use crate::headers::HeaderStyle;
use crate::key::ExtractKey;

/// Limits the requests to a service of axum, hyper, tonic or any other tower stack.
#[doc = include_str!("layer.md")]
#[derive(Clone)]
pub struct RateLimitLayer {
    decider: Arc<Decider>,
}

impl RateLimitLayer {
    /// Applies every rule of the limiter, counting by one key.
    pub fn new(limiter: Limiter, key: impl ExtractKey) -> Self {
        Self::with_selection(limiter, RuleSelection::AllRules(Arc::new(key)))
    }

    /// Applies some rules of the limiter, each counting by its own key, decided in one step.
    ///
    /// Fails if the limiter does not have one of the rules.
    pub fn rules(
        limiter: Limiter,
        rules: impl IntoIterator<Item = KeyedRule>,
    ) -> Result<Self, Refusal> {
        let rules: Arc<[KeyedRule]> = rules.into_iter().collect();
        let policy = limiter.policy();
        let unknown = rules.iter().find(|keyed| policy.rule(&keyed.rule).is_none());
        if let Some(keyed) = unknown {
            return Err(Refusal::UnknownRule { name: keyed.rule.clone(), meant: None });
        }
        Ok(Self::with_selection(limiter, RuleSelection::KeyedRules(rules)))
    }

    /// Applies limits that are chosen per request, for example by the tenant's plan, counting by
    /// one key. If `plan` returns `None`, every rule of the limiter applies.
    ///
    /// Make the rules with [`Rule::per_call`], all of one name: then a tenant that changes plans
    /// keeps its usage. An earlier layer should authenticate the tenant, look up the plan and pass
    /// both on as an extension.
    pub fn per_request_rule(
        limiter: Limiter,
        key: impl ExtractKey,
        plan: impl Fn(&Parts) -> Option<Arc<Rule>> + Send + Sync + 'static,
    ) -> Self {
        Self::with_selection(limiter, RuleSelection::PerRequest(Arc::new(key), Arc::new(plan)))
    }

    /// Applies the policy of the limiter: its rules select requests and define the keys.
    ///
    /// The client address is found as by [`ClientIp`](crate::ClientIp), behind these proxies. Only
    /// requests from these proxies may carry their cost in a header. A
    /// [changed](Limiter::set_policy) policy applies at once.
    pub fn policy(limiter: Limiter, proxies: TrustedProxies) -> Self {
        Self::with_selection(limiter, RuleSelection::Policy(proxies))
    }

    fn with_selection(limiter: Limiter, selection: RuleSelection) -> Self {
        Self { decider: Arc::new(Decider::new(limiter, selection)) }
    }

    fn with(mut self, set: impl FnOnce(&mut Decider)) -> Self {
        set(Arc::make_mut(&mut self.decider));
        self
    }

    /// Computes the cost of a request, which is otherwise 1. A cost of 0 takes nothing. In a policy
    /// it takes precedence over the cost header.
    ///
    /// A cost above [`Cost::MAX`](tidegate::Cost::MAX) is denied with 500.
    #[must_use]
    pub fn cost(self, cost: impl Fn(&Parts) -> u64 + Send + Sync + 'static) -> Self {
        self.with(|decider| decider.cost = Some(Arc::new(cost)))
    }

    /// Computes the cost of a request under each rule, given its name. It takes precedence over
    /// [`cost`](Self::cost). See [`Settlement::each_from_response`].
    ///
    /// A cost above [`Cost::MAX`](tidegate::Cost::MAX) is refused with 500.
    #[must_use]
    pub fn cost_each(self, cost: impl Fn(&Parts, &str) -> u64 + Send + Sync + 'static) -> Self {
        self.with(|decider| decider.cost_each = Some(Arc::new(cost)))
    }

    /// What happens to requests without the key. By default they share one count. In a policy, each
    /// rule has its own setting.
    #[must_use]
    pub fn on_missing_key(self, action: OnMissingKey) -> Self {
        self.with(|decider| decider.on_missing_key = action)
    }

    /// Lets a request that is over a limit wait for up to `timeout`, first come first served. It is
    /// denied at once if it would have to wait longer than `timeout`.
    ///
    /// A request whose client disconnects leaves the queue and is not charged. Waiting requests use
    /// memory, so limit their number, for example with tower's `ConcurrencyLimit` or in the server.
    #[must_use]
    pub fn wait(self, timeout: Duration) -> Self {
        self.with(|decider| decider.wait = Some(timeout))
    }

    /// Shadow mode: decides and reports to [`on_decision`](Self::on_decision), never denies or
    /// delays. Responses carry no headers about limits.
    #[must_use]
    pub fn shadow(self) -> Self {
        self.with(|decider| decider.enforcement = Enforcement::Shadow)
    }

    /// Holds the estimated cost during the request, then charges the actual one. See
    /// [`Settlement`].
    ///
    /// The estimate is at least 1. A request for which the service returns an error is not charged.
    /// If the client disconnects before the response, the estimate is charged: otherwise a client
    /// could cause the work and never pay for it.
    #[must_use]
    pub fn settle(self, settlement: Settlement) -> Self {
        self.with(|decider| decider.settlement = Some(settlement))
    }

    /// What happens to requests while the engine fails. By default they are denied with 503.
    /// [`tidegate::Fallback`] is usually better, because it keeps limiting.
    #[must_use]
    pub fn on_engine_error(self, action: OnEngineError) -> Self {
        self.with(|decider| decider.on_engine_error = action)
    }

    /// Builds the response to a denied request. The headers about limits are added to it. Denied
    /// gRPC calls do not use it: their response is fixed.
    ///
    /// ```
    /// # use tidegate::{Limiter, Memory};
    /// # use tidegate_tower::{ClientIp, RateLimitLayer};
    /// # let limiter = Limiter::new(Memory::default(), "5/m".parse().unwrap());
    /// let layer = RateLimitLayer::new(limiter, ClientIp::default()).render(|denial| {
    ///     let response = http::Response::builder().status(denial.status());
    ///     response.body("slow down".into()).unwrap_or_else(|_| denial.response())
    /// });
    /// ```
    #[must_use]
    pub fn render(
        self,
        render: impl Fn(&Denial<'_>) -> Response<Bytes> + Send + Sync + 'static,
    ) -> Self {
        self.with(|decider| decider.render = Some(Arc::new(render)))
    }

    /// Calls `hook` for every decision: for logs and metrics. If the layer is misconfigured, the
    /// error says what to change. It runs in the request path, so it must be fast.
    #[must_use]
    pub fn on_decision(self, hook: impl Fn(&DecisionEvent<'_>) + Send + Sync + 'static) -> Self {
        self.with(|decider| decider.on_decision = Some(Arc::new(hook)))
    }

    /// Random jitter added to `Retry-After`, as a fraction of it, so that requests that were denied
    /// together do not retry together. Jitter never shortens a wait.
    #[must_use]
    pub fn retry_jitter(self, jitter: Fraction) -> Self {
        self.with(|decider| decider.retry_jitter = Some(jitter))
    }

    /// Writes the headers about limits in this style.
    #[must_use]
    pub fn header_style(self, style: HeaderStyle) -> Self {
        self.with(|decider| decider.header_mode = HeaderMode::Send(style))
    }

    /// Omits the headers about limits. Denied requests still get `Retry-After`.
    #[must_use]
    pub fn without_headers(self) -> Self {
        self.with(|decider| decider.header_mode = HeaderMode::Omit)
    }

    /// For services whose bodies are neither axum's, tonic's nor boxed by `http-body-util`: the
    /// response body is a [`LimitedBody`] around the body of the service.
    #[must_use]
    pub fn any_body(self) -> AnyBody<Self> {
        AnyBody::new(self)
    }
}

impl<S> Layer<S> for RateLimitLayer {
    type Service = RateLimit<S>;

    fn layer(&self, inner: S) -> RateLimit<S> {
        RateLimit::new(inner, self.decider.clone())
    }
}

impl fmt::Debug for RateLimitLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimitLayer")
            .field("limiter", &self.decider.limiter)
            .finish_non_exhaustive()
    }
}
