//! Settings of a layer, shared by all services that it makes.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::Response;
use http::request::Parts;
use tidegate::policy::{Enforcement, OnMissingKey};
use tidegate::{Decision, EngineError, Fraction, Limiter, Rule};

use super::denial::Denial;
use super::keyed_rule::KeyedRule;
use super::settlement::Settlement;
use crate::extract::TrustedProxies;
use crate::headers::HeaderStyle;
use crate::key::ExtractKey;

/// The settings of one [`RateLimitLayer`](super::RateLimitLayer).
#[derive(Clone)]
pub(super) struct Decider {
    pub(super) limiter: Limiter,
    pub(super) selection: RuleSelection,
    pub(super) cost: Option<CostOf>,
    pub(super) cost_each: Option<CostOfRule>,
    pub(super) on_missing_key: OnMissingKey,
    pub(super) wait: Option<Duration>,
    pub(super) enforcement: Enforcement,
    pub(super) settlement: Option<Settlement>,
    pub(super) on_engine_error: OnEngineError,
    pub(super) render: Option<DenialRenderer>,
    pub(super) on_decision: Option<DecisionHook>,
    pub(super) header_mode: HeaderMode,
    pub(super) retry_jitter: Option<Fraction>,
}

type CostOf = Arc<dyn Fn(&Parts) -> u64 + Send + Sync>;

/// The cost of a request under the rule of this name.
pub(super) type CostOfRule = Arc<dyn Fn(&Parts, &str) -> u64 + Send + Sync>;
type DecisionHook = Arc<dyn Fn(&DecisionEvent<'_>) + Send + Sync>;
type DenialRenderer = Arc<dyn Fn(&Denial<'_>) -> Response<Bytes> + Send + Sync>;
type RuleOf = Arc<dyn Fn(&Parts) -> Option<Arc<Rule>> + Send + Sync>;

/// Which rules apply to a request, and under which key.
#[derive(Clone)]
pub(super) enum RuleSelection {
    AllRules(Arc<dyn ExtractKey>),
    KeyedRules(Arc<[KeyedRule]>),
    PerRequest(Arc<dyn ExtractKey>, RuleOf),
    Policy(TrustedProxies),
}

/// What happens to requests while the engine fails.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum OnEngineError {
    /// Deny with 503.
    #[default]
    Refuse,
    /// Pass, unlimited.
    Pass,
}

/// Do responses carry headers about limits?
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum HeaderMode {
    Send(HeaderStyle),
    Omit,
}

/// A decided request, as passed to [`on_decision`](super::RateLimitLayer::on_decision).
#[derive(Clone, Copy, Debug)]
pub struct DecisionEvent<'a> {
    /// The request.
    pub request: &'a Parts,
    /// The decision, or why there is none.
    pub decision: Result<&'a Decision, &'a EngineError>,
    /// Is the request passed to the service?
    pub passes: bool,
}

impl Decider {
    pub(super) fn new(limiter: Limiter, selection: RuleSelection) -> Self {
        Self {
            limiter,
            selection,
            cost: None,
            cost_each: None,
            on_missing_key: OnMissingKey::default(),
            wait: None,
            enforcement: Enforcement::default(),
            settlement: None,
            on_engine_error: OnEngineError::default(),
            render: None,
            on_decision: None,
            header_mode: HeaderMode::Send(HeaderStyle::default()),
            retry_jitter: None,
        }
    }
}
