//! What is asked about a request.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::Response;
use http::header::HOST;
use http::request::Parts;
use smallvec::SmallVec;
use tidegate::policy::{About, Enforcement, OnMissingKey, Question};
use tidegate::{
    Answer, Call, Charge, Cost, Decision, EngineError, HoldId, Key, Limited, Limiter, Op, Plan,
    Policy, PolicyRule, Refusal, Reserve, Rule, RuleLimit, Share,
};

use super::KeyedRule;
use super::denial::{Denial, Reason};
use super::outcome::{Decided, Outcome};
use super::settle::Settle;
use crate::extract::{Described, TrustedProxies, normal_host, normal_path};
use crate::key::{ClientIp, ExtractKey, KeyText, Lacks, peer};

/// Everything that a layer was told to do.
#[derive(Clone)]
pub(super) struct Gate {
    pub(super) limiter: Limiter,
    subject: Subject,
    pub(super) cost: Option<CostOf>,
    pub(super) on_missing_key: OnMissingKey,
    pub(super) wait: Option<Duration>,
    pub(super) enforcement: Enforcement,
    pub(super) settle: Option<Settle>,
    pub(super) on_no_answer: OnNoAnswer,
    pub(super) render: Option<Render>,
    pub(super) on_decision: Option<See>,
    pub(super) telling: Telling,
    pub(super) retry_jitter: Option<Share>,
    answers_later: Arc<AtomicBool>,
}

type CostOf = Arc<dyn Fn(&Parts) -> u64 + Send + Sync>;
type See = Arc<dyn Fn(&Decided<'_>) + Send + Sync>;
type Render = Arc<dyn Fn(&Denial<'_>) -> Response<Bytes> + Send + Sync>;
type PlanOf = Arc<dyn Fn(&Parts) -> Option<Arc<Rule>> + Send + Sync>;

/// Under which rules a request is, and as whom.
#[derive(Clone)]
pub(super) enum Subject {
    Every(Arc<dyn ExtractKey>),
    Each(Arc<[KeyedRule]>),
    Plans(Arc<dyn ExtractKey>, PlanOf),
    Policy(TrustedProxies),
}

/// What becomes of requests while there is no answer.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum OnNoAnswer {
    /// They are refused, with 503.
    #[default]
    Refuse,
    /// They pass, unlimited.
    Pass,
}

/// Are clients told their limits?
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Telling {
    Limits,
    Quiet,
}

/// The request as the rules see it: its keys, what it brings along, and its cost.
struct Found {
    keys: SmallVec<[KeyText; 2]>,
    /// The rules that the keys belong to, by their place, where each rule has its own.
    rules: SmallVec<[usize; 4]>,
    own: Option<Arc<Rule>>,
    cost: Option<Cost>,
}

impl Gate {
    pub(super) fn new(limiter: Limiter, subject: Subject) -> Self {
        Self {
            limiter,
            subject,
            cost: None,
            on_missing_key: OnMissingKey::default(),
            wait: None,
            enforcement: Enforcement::default(),
            settle: None,
            on_no_answer: OnNoAnswer::default(),
            render: None,
            on_decision: None,
            telling: Telling::Limits,
            retry_jitter: None,
            answers_later: Arc::default(),
        }
    }

    /// What becomes of the request, unless that has to be waited for. Then nothing was asked.
    pub(super) fn now(&self, request: &Parts) -> Option<Outcome> {
        if self.waits().is_some() || self.answers_later.load(Ordering::Relaxed) {
            return None;
        }
        if let (Subject::Every(key), None) = (&self.subject, &self.settle) {
            let plain = self.limiter.read_policy(|policy| {
                let limit = policy.plain_limit()?;
                Some(self.check_plain(request, limit, &**key))
            });
            if let Some(outcome) = plain {
                return outcome;
            }
        }
        let found = match self.find(request) {
            Ok(found) => found,
            Err(outcome) => return Some(*outcome),
        };
        let policy = self.limiter.policy();
        let parts: SmallVec<[_; 2]> = found.keys.iter().map(KeyText::parts).collect();
        let keys: SmallVec<[Key<'_>; 2]> = parts.iter().map(|parts| parts.key()).collect();
        let (plan, op) = match self.plan(&policy, &found, &keys, request) {
            Ok(planned) => planned,
            Err(error) => return Some(self.unanswered(request, &error)),
        };
        match self.limiter.ask(op, &plan).into_future() {
            Answer::Ready(answer) => Some(self.answered(request, &plan, op, answer)),
            Answer::Later(_) => self.has_to_wait(),
        }
    }

    /// An engine that answers later will do so again: the next request need not try.
    fn has_to_wait(&self) -> Option<Outcome> {
        self.answers_later.store(true, Ordering::Relaxed);
        None
    }

    /// How long a request may wait. Whoever only looks on keeps nobody waiting.
    fn waits(&self) -> Option<Duration> {
        self.wait.filter(|_| self.enforcement == Enforcement::Enforce)
    }

    /// What becomes of the request.
    pub(super) async fn later(&self, request: &Parts) -> Outcome {
        let found = match self.find(request) {
            Ok(found) => found,
            Err(outcome) => return *outcome,
        };
        let policy = self.limiter.policy();
        let parts: SmallVec<[_; 2]> = found.keys.iter().map(KeyText::parts).collect();
        let keys: SmallVec<[Key<'_>; 2]> = parts.iter().map(|parts| parts.key()).collect();
        let (plan, op) = match self.plan(&policy, &found, &keys, request) {
            Ok(planned) => planned,
            Err(error) => return self.unanswered(request, &error),
        };
        let asking = self.limiter.ask(op, &plan);
        let answer = match self.waits() {
            None => asking.await,
            Some(timeout) => match asking.wait(timeout).await {
                Err(Limited::Denied(decision)) => Ok(*decision),
                Err(Limited::NoAnswer(error)) => Err(error),
                Ok(decision) => Ok(decision),
            },
        };
        let mut outcome = self.answered(request, &plan, op, answer);
        if let Outcome::Pass(passed) = &mut outcome {
            passed.wait_for_turn().await;
        }
        outcome
    }

    /// Checks the one limit that there is; most layers have no more.
    fn check_plain(
        &self,
        request: &Parts,
        limit: &Arc<RuleLimit>,
        extract: &dyn ExtractKey,
    ) -> Option<Outcome> {
        let mut key = KeyText::default();
        let cost = match self.cost_of(request).and_then(|cost| {
            extract.extract(request, &mut key);
            Ok((cost, self.counts(request, &key)?))
        }) {
            Ok((cost, true)) => cost.unwrap_or(Cost::ONE),
            Ok((_, false)) => return Some(self.unlimited()),
            Err(outcome) => return Some(*outcome),
        };
        if key.is_too_long() {
            return Some(self.unanswered(request, &Refusal::KeyTooLong.into()));
        }
        let parts = key.parts();
        let charge = Charge { limit, key: parts.key(), cost, who: None };
        if let Some((source, verdict)) = self.limiter.engine().check_one(&charge) {
            let decision = Decision::of_one(source, verdict);
            return Some(self.decided(request, &[&**limit], Op::Check, &decision));
        }
        let charges = &[charge];
        match self.limiter.engine().decide(Call { op: Op::Check, charges, once: None }) {
            Answer::Ready(Ok(decision)) => {
                Some(self.decided(request, &[&**limit], Op::Check, &decision))
            }
            Answer::Ready(Err(error)) => Some(self.unanswered(request, &error)),
            Answer::Later(_) => self.has_to_wait(),
        }
    }

    fn answered(
        &self,
        request: &Parts,
        plan: &Plan<'_>,
        op: Op,
        answer: Result<Decision, EngineError>,
    ) -> Outcome {
        match answer {
            Ok(decision) => {
                let limits: SmallVec<[&RuleLimit; 4]> = plan.deciding().map(|l| &**l).collect();
                self.decided(request, &limits, op, &decision)
            }
            Err(error) => self.unanswered(request, &error),
        }
    }

    /// What is to be known about the request; the outcome, if that is clear without asking.
    fn find(&self, request: &Parts) -> Result<Found, Box<Outcome>> {
        let cost = self.cost_of(request)?;
        let mut found = Found { keys: SmallVec::new(), rules: SmallVec::new(), own: None, cost };
        match &self.subject {
            Subject::Policy(_) => {
                self.check_setup(request)?;
                return Ok(found);
            }
            Subject::Every(key) => {
                self.find_key(request, &**key, &mut found)?;
            }
            Subject::Plans(key, plan) => {
                self.find_key(request, &**key, &mut found)?;
                found.own = plan(request);
            }
            Subject::Each(rules) => {
                for (place, keyed) in rules.iter().enumerate() {
                    let counts = self.find_key(request, &*keyed.key, &mut found)?;
                    found.rules.extend(counts.then_some(place));
                }
            }
        }
        // For want of a key no rule applies.
        if found.keys.is_empty() { Err(Box::new(self.unlimited())) } else { Ok(found) }
    }

    /// What the request costs, if somebody has said so.
    fn cost_of(&self, request: &Parts) -> Result<Option<Cost>, Box<Outcome>> {
        match self.cost.as_ref().map(|cost| Cost::new(cost(request))).transpose() {
            // A reservation of nothing could not be settled.
            Ok(cost) if self.settle.is_some() => Ok(cost.map(|cost| cost.max(Cost::ONE))),
            Ok(cost) => Ok(cost),
            Err(_) => {
                let reason = Reason::NotSetUp("the cost of the request is too large");
                Err(self.uncounted(request, reason))
            }
        }
    }

    /// A policy that goes by addresses must be told them, or everybody would count as one, and whoever is
    /// denied by a list of networks would pass.
    fn check_setup(&self, request: &Parts) -> Result<(), Box<Outcome>> {
        let needs_address = |rule: &Arc<PolicyRule>| rule.needs_client_ip();
        if peer(&request.extensions).is_none()
            && self.limiter.policy().rules().iter().any(needs_address)
        {
            return Err(self.uncounted(request, Reason::NotSetUp(ClientIp::NO_PEER)));
        }
        Ok(())
    }

    /// Finds a key; `false` if the request lacks it and the rule is then skipped.
    fn find_key(
        &self,
        request: &Parts,
        extract: &dyn ExtractKey,
        found: &mut Found,
    ) -> Result<bool, Box<Outcome>> {
        let mut key = KeyText::default();
        extract.extract(request, &mut key);
        let counts = self.counts(request, &key)?;
        found.keys.extend(counts.then_some(key));
        Ok(counts)
    }

    /// Is the request counted by this key? If it lacks one, that has been decided before.
    fn counts(&self, request: &Parts, key: &KeyText) -> Result<bool, Box<Outcome>> {
        match (key.lacks(), self.on_missing_key) {
            (Lacks::Setup(what_to_do), _) => {
                Err(self.uncounted(request, Reason::NotSetUp(what_to_do)))
            }
            (Lacks::Nothing, _) | (Lacks::Part, OnMissingKey::Shared) => Ok(true),
            (Lacks::Part, OnMissingKey::Skip) => Ok(false),
            (Lacks::Part, OnMissingKey::Deny) => Err(self.uncounted(request, Reason::NoKey)),
        }
    }

    /// What is to be charged, and how: taking places where they are counted; or set aside.
    fn plan<'p>(
        &'p self,
        policy: &'p Policy,
        found: &'p Found,
        keys: &[Key<'p>],
        request: &Parts,
    ) -> Result<(Plan<'p>, Op), EngineError> {
        let now = self.limiter.clock().now();
        let cost = found.cost.unwrap_or(Cost::ONE);
        let key = keys.first().copied().unwrap_or(Key::of(&[]));
        let plan = match (&self.subject, &found.own) {
            (Subject::Policy(proxies), _) => {
                policy.plan_request(&described(request, proxies, found.cost), now)
            }
            (Subject::Each(rules), _) => {
                let question = |(&place, &key): (&usize, &Key<'p>)| {
                    let about = About::Rule(&rules[place].rule);
                    Question { about, key, cost }
                };
                let questions: SmallVec<[_; 2]> =
                    found.rules.iter().zip(keys).map(question).collect();
                policy.plan_questions(&questions, now)
            }
            (Subject::Plans(..), Some(rule)) => {
                policy.plan_questions(&[Question { about: About::Own(rule), key, cost }], now)
            }
            (Subject::Every(_) | Subject::Plans(..), _) => policy.plan_key(key, cost, now),
        };
        let plan = plan?.entering()?;
        let op = match (plan.passing()?, &self.settle) {
            (op, None) => op,
            (Op::Enter { id, ttl }, Some(_)) => Op::Visit { id, ttl },
            (_, Some(_)) => Op::Visit { id: HoldId::random()?, ttl: Reserve::DEFAULT_TTL.into() },
        };
        Ok((plan, op))
    }
}

fn described<'a>(
    request: &'a Parts,
    proxies: &TrustedProxies,
    cost: Option<Cost>,
) -> Described<'a> {
    let peer = peer(&request.extensions);
    // HTTP/2 names the host in the address of the request, HTTP/1 in a header.
    let of_header = request.headers.get(HOST).and_then(|host| host.to_str().ok());
    let host = request.uri.authority().map(|host| host.as_str()).or(of_header);
    Described {
        headers: &request.headers,
        method: request.method.as_str(),
        path: normal_path(request.uri.path()),
        query: request.uri.query().unwrap_or_default(),
        host: host.and_then(normal_host).unwrap_or_default(),
        client_ip: peer.map(|peer| proxies.client_ip(peer, &request.headers)),
        is_vouched_for: peer.is_some_and(|peer| proxies.contains(peer)),
        cost,
    }
}
