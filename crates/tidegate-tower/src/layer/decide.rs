//! Finds key and cost of a request, plans the call and sends it to the limiter.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use http::header::HOST;
use http::request::Parts;
use smallvec::SmallVec;
use tidegate::policy::{Enforcement, ListMode, OnMissingKey, RuleTarget};
use tidegate::{
    Call, Charge, Cost, EngineError, HoldId, Key, Limited, Op, Plan, Policy, PolicyRule, Reserve,
    Rule, RuleCheck,
};

use super::admission::Admission;
use super::denial::DenialReason;
use super::settings::{Decider, RuleSelection};
use crate::extract::{PolicyRequest, TrustedProxies, normalize_host, normalize_path};
use crate::key::{ClientIp, ExtractKey, KeyBuilder, KeyDefect, peer};

/// What the rules need to know about a request.
struct RequestFacts {
    keys: SmallVec<[KeyBuilder; 2]>,
    /// Indexes of the rules that the keys belong to, for [`RuleSelection::KeyedRules`].
    rules: SmallVec<[usize; 4]>,
    request_rule: Option<Arc<Rule>>,
    cost: Option<Cost>,
}

impl Decider {
    /// Decides without waiting; `None` if the engine or the queue may have to.
    pub(super) fn decide_now(&self, request: &Parts) -> Option<Admission> {
        if self.max_wait().is_some() || !self.limiter.engine().is_synchronous() {
            return None;
        }
        let plain = self.limiter.read_policy(|policy| self.decide_plain(request, policy));
        if plain.is_some() {
            return plain;
        }
        // A synchronous engine decides at the first poll.
        match pin!(self.decide(request)).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(admission) => Some(admission),
            Poll::Pending => None,
        }
    }

    /// Fast path: a check of one key under a single plain limit needs no plan. `None` has done
    /// nothing.
    fn decide_plain(&self, request: &Parts, policy: &Policy) -> Option<Admission> {
        let RuleSelection::AllRules(extract) = &self.selection else { return None };
        let has_cost = self.cost.is_some() || self.cost_each.is_some();
        if has_cost || self.settlement.is_some() || policy.plain_limit().is_none() {
            return None;
        }
        let mut key = KeyBuilder::default();
        extract.extract(request, &mut key);
        let (parts, cost) = (key.parts(), Cost::ONE);
        let limit = self.limiter.plain_limit(policy, parts.key())?;
        match self.counts(request, &key) {
            Ok(true) => {}
            Ok(false) => return Some(self.pass_unlimited()),
            Err(admission) => return Some(*admission),
        }
        let charges = &[Charge { limit, key: parts.key(), cost, caller: None }];
        let call = Call { op: Op::Check, charges, idempotency_key: None };
        Some(match &self.limiter.engine().decide_now(&call) {
            Ok(decision) => self.decided(request, [limit], None, decision),
            Err(error) => self.handle_engine_error(request, error),
        })
    }

    /// How long a request may wait. In shadow mode no request waits.
    fn max_wait(&self) -> Option<Duration> {
        self.wait.filter(|_| self.enforcement == Enforcement::Enforce)
    }

    /// Decides, waiting for the engine and, if configured, for permits.
    pub(super) async fn decide(&self, request: &Parts) -> Admission {
        let facts = match self.gather_facts(request) {
            Ok(facts) => facts,
            Err(admission) => return *admission,
        };
        let policy = self.limiter.policy();
        let parts: SmallVec<[_; 2]> = facts.keys.iter().map(KeyBuilder::parts).collect();
        let keys: SmallVec<[Key<'_>; 2]> = parts.iter().map(|parts| parts.key()).collect();
        let (plan, op) = match self.plan(&policy, &facts, &keys, request) {
            Ok(planned) => planned,
            Err(error) => return self.handle_engine_error(request, &error),
        };
        let check = self.limiter.decide(op, &plan);
        let result = match self.max_wait() {
            None => check.await,
            Some(timeout) => match check.wait(timeout).await {
                Err(Limited::Denied(decision)) => Ok(*decision),
                Err(Limited::NoAnswer(error)) => Err(error),
                Ok(decision) => Ok(decision),
            },
        };
        match result {
            Ok(decision) => {
                let guard = self.guard(op, &plan, &decision);
                self.decided(request, plan.limits(), guard, &decision)
            }
            Err(error) => self.handle_engine_error(request, &error),
        }
    }

    /// Finds keys and cost, or an admission if no engine call is needed.
    fn gather_facts(&self, request: &Parts) -> Result<RequestFacts, Box<Admission>> {
        let cost = self.cost_of(request)?;
        let mut facts = RequestFacts {
            keys: SmallVec::new(),
            rules: SmallVec::new(),
            request_rule: None,
            cost,
        };
        match &self.selection {
            RuleSelection::Policy(_) => {
                self.check_peer_known(request)?;
                return Ok(facts);
            }
            RuleSelection::AllRules(key) => {
                self.find_key(request, &**key, &mut facts)?;
            }
            RuleSelection::PerRequest(key, plan) => {
                self.find_key(request, &**key, &mut facts)?;
                facts.request_rule = plan(request);
            }
            RuleSelection::KeyedRules(rules) => {
                for (index, keyed) in rules.iter().enumerate() {
                    let counts = self.find_key(request, &*keyed.key, &mut facts)?;
                    facts.rules.extend(counts.then_some(index));
                }
            }
        }
        // No key, so no rule applies.
        if facts.keys.is_empty() { Err(Box::new(self.pass_unlimited())) } else { Ok(facts) }
    }

    /// The cost set by [`RateLimitLayer::cost`](super::RateLimitLayer::cost), if any.
    fn cost_of(&self, request: &Parts) -> Result<Option<Cost>, Box<Admission>> {
        match self.cost.as_ref().map(|cost| Cost::new(cost(request))).transpose() {
            // A hold of 0 cannot be settled.
            Ok(cost) if self.settlement.is_some() => Ok(cost.map(|cost| cost.max(Cost::ONE))),
            Ok(cost) => Ok(cost),
            Err(_) => {
                let reason =
                    DenialReason::Misconfigured("the cost of the request exceeds Cost::MAX");
                Err(self.deny_without_decision(request, reason))
            }
        }
    }

    /// A policy whose rules use client addresses needs the peer address. Without it, all clients
    /// would share one key, and deny lists of networks would match nothing.
    fn check_peer_known(&self, request: &Parts) -> Result<(), Box<Admission>> {
        let needs_address = |rule: &Arc<PolicyRule>| rule.needs_client_ip();
        if peer(&request.extensions).is_none()
            && self.limiter.policy().rules().iter().any(needs_address)
        {
            return Err(
                self.deny_without_decision(request, DenialReason::Misconfigured(ClientIp::NO_PEER))
            );
        }
        Ok(())
    }

    /// Extracts a key; `false` if it is missing and the rule is skipped.
    fn find_key(
        &self,
        request: &Parts,
        extract: &dyn ExtractKey,
        facts: &mut RequestFacts,
    ) -> Result<bool, Box<Admission>> {
        let mut key = KeyBuilder::default();
        extract.extract(request, &mut key);
        let counts = self.counts(request, &key)?;
        facts.keys.extend(counts.then_some(key));
        Ok(counts)
    }

    /// Is the request counted under this key? A missing key is handled by `on_missing_key`.
    fn counts(&self, request: &Parts, key: &KeyBuilder) -> Result<bool, Box<Admission>> {
        match (key.defect(), self.on_missing_key) {
            (KeyDefect::Misconfigured(remedy), _) => {
                Err(self.deny_without_decision(request, DenialReason::Misconfigured(remedy)))
            }
            (KeyDefect::None, _) | (KeyDefect::MissingPart, OnMissingKey::Shared) => Ok(true),
            (KeyDefect::MissingPart, OnMissingKey::Skip) => Ok(false),
            (KeyDefect::MissingPart, OnMissingKey::Deny) => {
                Err(self.deny_without_decision(request, DenialReason::MissingKey))
            }
        }
    }

    /// The charges and the operation: a check, a concurrency slot, or a hold to be settled.
    fn plan<'p>(
        &'p self,
        policy: &'p Policy,
        facts: &'p RequestFacts,
        keys: &[Key<'p>],
        request: &Parts,
    ) -> Result<(Plan<'p>, Op<'static>), EngineError> {
        let now = self.limiter.clock().now();
        let cost = facts.cost.unwrap_or(Cost::ONE);
        let key = keys.first().copied().unwrap_or(Key::of(&[]));
        let plan = match (&self.selection, &facts.request_rule) {
            (RuleSelection::Policy(proxies), _) => {
                policy.plan_request(&policy_request(request, proxies, facts.cost), now)
            }
            (RuleSelection::KeyedRules(rules), _) => {
                let check = |(&index, &key): (&usize, &Key<'p>)| {
                    RuleCheck::new(&rules[index].rule, key).cost(cost.get())
                };
                let checks: SmallVec<[_; 2]> = facts.rules.iter().zip(keys).map(check).collect();
                policy.plan_checks(&checks, ListMode::Evaluate, now)
            }
            (RuleSelection::PerRequest(..), Some(rule)) => {
                let check = RuleCheck::of(RuleTarget::Own(rule), key, cost.get());
                policy.plan_checks(&[check], ListMode::Evaluate, now)
            }
            (RuleSelection::AllRules(_) | RuleSelection::PerRequest(..), _) => {
                policy.plan_key(key, cost, ListMode::Evaluate, now)
            }
        };
        let mut plan = plan?.with_slots()?;
        if let Some(cost) = &self.cost_each {
            // A hold of 0 cannot be settled.
            let least = u64::from(self.settlement.is_some());
            plan = plan.with_costs(|rule| Ok(Cost::new(cost(request, rule.name()).max(least))?))?;
        }
        let op = match (plan.op()?, &self.settlement) {
            (op, None) => op,
            (Op::Hold(entry), Some(_)) => Op::hold_for_request(entry.id, entry.ttl),
            (_, Some(_)) => Op::hold_for_request(HoldId::random()?, Reserve::DEFAULT_TTL.into()),
        };
        Ok((plan, op))
    }
}

fn policy_request<'a>(
    request: &'a Parts,
    proxies: &TrustedProxies,
    cost: Option<Cost>,
) -> PolicyRequest<'a> {
    let peer = peer(&request.extensions);
    // HTTP/2 has the host in the URI, HTTP/1 in a header.
    let of_header = request.headers.get(HOST).and_then(|host| host.to_str().ok());
    let host = request.uri.authority().map(|host| host.as_str()).or(of_header);
    PolicyRequest {
        headers: &request.headers,
        method: request.method.as_str(),
        path: normalize_path(request.uri.path()),
        query: request.uri.query().unwrap_or_default(),
        host: host.and_then(normalize_host).unwrap_or_default(),
        client_ip: peer.map(|peer| proxies.client_ip(peer, &request.headers)),
        is_from_trusted_proxy: peer.is_some_and(|peer| proxies.contains(peer)),
        cost,
    }
}
