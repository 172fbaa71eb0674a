//! The layer in front of a service.
//!
//! # Layout
//!
//! - this file: what users build. `gate`: what is asked about a request. `outcome`: what follows.
//! - `service`, `future`: the tower part.
//! - `denial`: what is told to whom was turned away. `grpc`: the same for gRPC.
//! - `body`: bodies that keep a place until they end. `settle`: what a request has cost in the end.

mod body;
mod denial;
mod future;
mod gate;
mod grpc;
mod outcome;
mod service;
mod settle;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::Response;
use http::request::Parts;
use tidegate::policy::{Enforcement, OnMissingKey};
use tidegate::{Limiter, Refusal, Rule, Share};
use tower_layer::Layer;

pub use self::body::{Guard, LimitedBody, ResponseBody};
pub use self::denial::{Denial, Reason};
pub use self::future::ResponseFuture;
pub use self::gate::OnNoAnswer;
use self::gate::{Gate, Subject, Telling};
pub use self::outcome::Decided;
pub use self::service::{AnyBody, AnyBodyFuture, RateLimit};
pub use self::settle::{Settle, Spent};
use crate::extract::TrustedProxies;
use crate::key::ExtractKey;

/// Limits the requests to a service: axum, hyper, tonic, or any other of tower.
#[doc = include_str!("layer.md")]
#[derive(Clone)]
pub struct RateLimitLayer {
    gate: Arc<Gate>,
}

/// A rule of a limiter, and whom it counts.
#[derive(Clone)]
pub struct KeyedRule {
    pub(crate) rule: Box<str>,
    pub(crate) key: Arc<dyn ExtractKey>,
}

impl KeyedRule {
    /// The rule of this name, counting by this key.
    pub fn new(rule: &str, key: impl ExtractKey) -> Self {
        Self { rule: rule.into(), key: Arc::new(key) }
    }
}

impl RateLimitLayer {
    /// Every rule of the limiter, counting by one key.
    pub fn new(limiter: Limiter, key: impl ExtractKey) -> Self {
        Self::over(limiter, Subject::Every(Arc::new(key)))
    }

    /// Some rules of the limiter, each counting by its own key, decided in one step.
    ///
    /// A rule that the limiter does not have is refused.
    pub fn rules(
        limiter: Limiter,
        rules: impl IntoIterator<Item = KeyedRule>,
    ) -> Result<Self, Refusal> {
        let rules: Arc<[KeyedRule]> = rules.into_iter().collect();
        let policy = limiter.policy();
        let unknown = rules.iter().find(|keyed| policy.rule(&keyed.rule).is_none());
        if let Some(keyed) = unknown {
            return Err(Refusal::UnknownRule(keyed.rule.clone()));
        }
        Ok(Self::over(limiter, Subject::Each(rules)))
    }

    /// The limits that each request brings along, as the plan that a tenant has paid for, counting
    /// by one key. A request that brings none is under every rule of the limiter.
    ///
    /// Make the rules with [`Rule::brought_along`], all of one name: then a tenant who changes plans
    /// keeps what is used. Who the tenant is and what the plan is should be found out by a layer
    /// before this one, and passed on as an extension.
    pub fn plans(
        limiter: Limiter,
        key: impl ExtractKey,
        plan: impl Fn(&Parts) -> Option<Arc<Rule>> + Send + Sync + 'static,
    ) -> Self {
        Self::over(limiter, Subject::Plans(Arc::new(key), Arc::new(plan)))
    }

    /// The policy of the limiter: its rules say which requests they are about and whom they count.
    ///
    /// Addresses are found as [`ClientIp`](crate::ClientIp) finds them, behind these proxies; from them alone a header tells
    /// the cost of a request. A policy that is [changed](Limiter::set_policy) applies at once.
    pub fn policy(limiter: Limiter, proxies: TrustedProxies) -> Self {
        Self::over(limiter, Subject::Policy(proxies))
    }

    fn over(limiter: Limiter, subject: Subject) -> Self {
        Self { gate: Arc::new(Gate::new(limiter, subject)) }
    }

    fn with(mut self, change: impl FnOnce(&mut Gate)) -> Self {
        change(Arc::make_mut(&mut self.gate));
        self
    }

    /// What a request costs, instead of 1. Like keys and plans, it may be asked for twice about one request. A cost of 0 takes nothing. In a policy it comes before
    /// what a header says.
    ///
    /// A cost beyond [`Cost::MAX`](tidegate::Cost::MAX) is an error of the server.
    #[must_use]
    pub fn cost(self, cost: impl Fn(&Parts) -> u64 + Send + Sync + 'static) -> Self {
        self.with(|gate| gate.cost = Some(Arc::new(cost)))
    }

    /// What becomes of requests without the key; by default they are counted together. In a policy
    /// each rule says so itself.
    #[must_use]
    pub fn on_missing_key(self, what: OnMissingKey) -> Self {
        self.with(|gate| gate.on_missing_key = what)
    }

    /// Lets a request that is over a limit wait for its turn, first come first served, but no longer
    /// than `timeout`; it is denied at once if even the earliest possible turn is later than that.
    ///
    /// A client that goes away leaves the line and is charged nothing. Requests that wait are held
    /// in memory, so this wants a limit on how many there may be, such as tower's `ConcurrencyLimit`
    /// or that of the server.
    #[must_use]
    pub fn wait(self, timeout: Duration) -> Self {
        self.with(|gate| gate.wait = Some(timeout))
    }

    /// Decides, and lets everybody pass, at once. Clients are not told;
    /// [`on_decision`](Self::on_decision) is, and sees who would have been denied.
    #[must_use]
    pub fn shadow(self) -> Self {
        self.with(|gate| gate.enforcement = Enforcement::Shadow)
    }

    /// Sets the cost aside before the request, and charges what it has cost in the end. See
    /// [`Settle`].
    ///
    /// What is set aside is at least 1. A request that the service fails to answer is charged nothing.
    /// One whose client goes away before there is a response is charged what was set aside: else a
    /// client could have the work done and never pay for it.
    #[must_use]
    pub fn settle(self, settle: Settle) -> Self {
        self.with(|gate| gate.settle = Some(settle))
    }

    /// What becomes of requests while the engine gives no answer; by default they are refused with
    /// 503. [`tidegate::Fallback`] is the better way, since it goes on limiting.
    #[must_use]
    pub fn on_no_answer(self, what: OnNoAnswer) -> Self {
        self.with(|gate| gate.on_no_answer = what)
    }

    /// Answers those who are turned away. The headers that tell of limits are added to the answer.
    /// gRPC is answered in its own way, without asking.
    ///
    /// ```
    /// # use tidegate::{Limiter, Memory};
    /// # use tidegate_tower::{ClientIp, RateLimitLayer};
    /// # let limiter = Limiter::new(Memory::default(), "5/m".parse().unwrap());
    /// let layer = RateLimitLayer::new(limiter, ClientIp::default()).render(|denial| {
    ///     let answer = http::Response::builder().status(denial.status());
    ///     answer.body("slow down".into()).unwrap_or_else(|_| denial.response())
    /// });
    /// ```
    #[must_use]
    pub fn render(
        self,
        render: impl Fn(&Denial<'_>) -> Response<Bytes> + Send + Sync + 'static,
    ) -> Self {
        self.with(|gate| gate.render = Some(Arc::new(render)))
    }

    /// Sees every decision: for logs and metrics. If the service is not set up to limit, the error says
    /// what to do. It is called on the way of the request, so it has to be quick.
    #[must_use]
    pub fn on_decision(self, see: impl Fn(&Decided<'_>) + Send + Sync + 'static) -> Self {
        self.with(|gate| gate.on_decision = Some(Arc::new(see)))
    }

    /// Tells those who are denied to come back later by up to this share of their wait, at random, so that
    /// many who were denied together do not come back together. Nobody is told to come too early.
    #[must_use]
    pub fn retry_jitter(self, most: Share) -> Self {
        self.with(|gate| gate.retry_jitter = Some(most))
    }

    /// Does not tell clients their limits. Those who are denied are still told when to come back.
    #[must_use]
    pub fn without_headers(self) -> Self {
        self.with(|gate| gate.telling = Telling::Quiet)
    }

    /// For services whose bodies are neither axum's nor tonic's nor boxed by `http-body-util`: the
    /// response has a [`LimitedBody`] around the service's own.
    #[must_use]
    pub fn any_body(self) -> AnyBody<Self> {
        AnyBody::new(self)
    }
}

impl<S> Layer<S> for RateLimitLayer {
    type Service = RateLimit<S>;

    fn layer(&self, inner: S) -> RateLimit<S> {
        RateLimit::new(inner, self.gate.clone())
    }
}

impl fmt::Debug for RateLimitLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimitLayer")
            .field("limiter", &self.gate.limiter)
            .finish_non_exhaustive()
    }
}
