//! A request in, a response out.
//!
//! Descriptors without a number of hits are one call: all of them are charged, or none. Where a number is
//! given it has happened already, or will whatever is answered: it is charged, into debt if need be.

use std::fmt;
use std::sync::Arc;

use smallvec::SmallVec;
use tidegate::{Rule, Source};

use super::lookup::Subject;
use super::proto::{RateLimitRequest, RateLimitResponse};
use super::request::{Deed, Placed, Wishes};
use super::response::{Report, Told, response};
use super::stats::Stats;
use crate::active::Active;
use crate::service::{Answer, Ask, Failure, Service, Target, Verb};

/// What Envoy asks.
pub struct RateLimits {
    service: Arc<Service>,
    settings: Settings,
    stats: Option<Arc<Stats>>,
}

/// How requests are answered.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Settings {
    /// Which headers the client is told.
    pub headers: Headers,
    /// Is anything enforced at all?
    pub enforcement: Enforcement,
}

/// The headers that Envoy adds to a response.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Headers {
    /// None.
    #[default]
    Off,
    /// `RateLimit-Limit`, `RateLimit-Remaining` and `RateLimit-Reset`, as envoyproxy/ratelimit writes them.
    Theirs,
    /// Those that the other doors answer with.
    Ours,
}

/// Is anything enforced?
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Enforcement {
    /// It is.
    #[default]
    Enforce,
    /// Everything passes; what each descriptor would have been told stays in its status.
    Shadow,
}

/// Why there is no response.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Fault {
    /// The request is not one.
    Invalid(String),
    /// The store gave no answer, and the rule leaves it to Envoy what that means.
    Unavailable(String),
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Invalid(told) | Self::Unavailable(told) => f.write_str(told),
        }
    }
}

impl std::error::Error for Fault {}

impl From<Failure> for Fault {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::NoAnswer(error) => Self::Unavailable(error.to_string()),
            other => Self::Invalid(other.to_string()),
        }
    }
}

impl RateLimits {
    /// What Envoy asks of this service.
    pub fn new(service: Arc<Service>, settings: Settings) -> Self {
        Self { service, settings, stats: None }
    }

    /// Counts under envoyproxy/ratelimit's names, too.
    #[must_use]
    pub fn counted_by(self, stats: Arc<Stats>) -> Self {
        Self { stats: Some(stats), ..self }
    }

    /// What is counted under envoyproxy/ratelimit's names, if anything.
    pub fn stats(&self) -> Option<&Stats> {
        self.stats.as_deref()
    }

    /// What Envoy is told.
    pub fn settings(&self) -> Settings {
        self.settings
    }

    /// Whom it asks.
    pub fn service(&self) -> &Arc<Service> {
        &self.service
    }

    /// May this request pass?
    pub async fn decide(&self, request: &RateLimitRequest) -> Result<RateLimitResponse, Fault> {
        let decided = loop {
            let active = self.service.active();
            if let Some(decided) = self.decide_under(&active, request).await.transpose() {
                break decided;
            }
        };
        if let (Some(stats), Err(fault)) = (&self.stats, &decided) {
            stats.count_fault(fault);
        }
        decided
    }

    /// The same under one configuration; `None` if another has come into force before anything was
    /// charged.
    async fn decide_under(
        &self,
        active: &Arc<Active>,
        request: &RateLimitRequest,
    ) -> Result<Option<RateLimitResponse>, Fault> {
        let wishes = Wishes::of(request, active.envoy())?;
        let limited: SmallVec<[&Placed<'_>; 4]> = wishes.limited().collect();
        let subjects: SmallVec<[Subject<'_>; 2]> = limited.iter().map(|l| l.subject()).collect();
        let reports = SmallVec::from_elem(Report::nothing(), limited.len());
        let (limited, subjects) = (&*limited, &*subjects);
        let mut call = Call { limits: self, active, limited, subjects, reports, begun: false };
        match call.make().await {
            Ok(()) => {}
            Err(Stop::Changed) => return Ok(None),
            Err(Stop::Fault(fault)) => return Err(fault),
        }
        let told: Told<'_, '_> = limited.iter().copied().zip(call.reports).collect();
        if let Some(stats) = &self.stats {
            stats.count(&request.domain, &wishes, &told);
        }
        Ok(Some(response(&wishes, &told, self.settings)))
    }
}

impl fmt::Debug for RateLimits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimits").field("settings", &self.settings).finish_non_exhaustive()
    }
}

/// A request on its way through the engine.
struct Call<'c, 'p, 's> {
    limits: &'c RateLimits,
    active: &'c Arc<Active>,
    limited: &'c [&'c Placed<'p>],
    subjects: &'c [Subject<'s>],
    /// What was told about each of them.
    reports: SmallVec<[Report; 4]>,
    /// Something was asked, so that it is too late for another configuration.
    begun: bool,
}

/// Why a call ends early.
enum Stop {
    /// Another configuration is in force.
    Changed,
    Fault(Fault),
}

impl<F: Into<Fault>> From<F> for Stop {
    fn from(fault: F) -> Self {
        Self::Fault(fault.into())
    }
}

/// Places in the list of those under a limit.
type Places = SmallVec<[usize; 4]>;

impl Call<'_, '_, '_> {
    async fn make(&mut self) -> Result<(), Stop> {
        let (takes, quotas) = (self.doing(Deed::Take), self.doing(Deed::TakeQuota));
        let passes = self.take(&takes, &quotas).await?;
        // What one quota cannot give another one may, so that each is asked for itself.
        for quota in quotas {
            let verb = if passes { Verb::Check } else { Verb::Peek };
            self.ask(verb, &[quota]).await?;
        }
        self.ask(Verb::Record, &self.doing(Deed::Record)).await?;
        self.ask(Verb::Peek, &self.doing(Deed::Peek)).await?;
        self.ask(Verb::Refund, &self.doing(Deed::Refund)).await
    }

    /// Takes one of each limit, if all have one; and none if no quota has, since the request is denied then.
    async fn take(&mut self, takes: &[usize], quotas: &[usize]) -> Result<bool, Stop> {
        if takes.is_empty() {
            return Ok(true);
        }
        self.ask(Verb::Peek, quotas).await?;
        if !quotas.is_empty() && quotas.iter().all(|&place| self.reports[place].is_over()) {
            self.ask(Verb::Peek, takes).await?;
            return Ok(false);
        }
        self.ask(Verb::Check, takes).await?;
        Ok(!takes.iter().any(|&place| self.reports[place].is_over()))
    }

    fn doing(&self, deed: Deed) -> Places {
        let places = self.limited.iter().enumerate();
        places.filter(|(_, limited)| limited.deed() == deed).map(|(place, _)| place).collect()
    }

    /// Asks about these, all in one step.
    async fn ask(&mut self, verb: Verb, places: &[usize]) -> Result<(), Stop> {
        if places.is_empty() {
            return Ok(());
        }
        let ask = |&place: &usize| {
            let limited = self.limited[place];
            let (key, cost) = (self.subjects[place].key(), limited.cost().get());
            Some(Ask { target: Target::Own(limited.rule()?), key, cost })
        };
        let asks: SmallVec<[Ask<'_>; 4]> = places.iter().filter_map(ask).collect();
        let service = &self.limits.service;
        let answer = match self.begun {
            true => service.ask(verb, &asks, None).await?,
            false => {
                let answer = service.ask_under(self.active, verb, &asks, None).await?;
                answer.ok_or(Stop::Changed)?
            }
        };
        self.begun = true;
        self.note(verb, places, &answer)
    }

    fn note(&mut self, verb: Verb, places: &[usize], answer: &Answer) -> Result<(), Stop> {
        let decision = &answer.decision;
        let (mut deciding, mut looking_on) = (decision.verdicts.iter(), decision.shadow().iter());
        for &place in places {
            let leaf = self.limited[place].leaf();
            if decision.source == Source::Fallback && leaf.says_unavailable() {
                let told = "the store does not answer, and the rule leaves it to Envoy";
                return Err(Fault::Unavailable(told.into()).into());
            }
            let limits = leaf.rule().into_iter().flat_map(Rule::limits);
            let verdicts = limits.filter_map(|limit| match limit.is_shadow() {
                true => looking_on.next(),
                false => deciding.next(),
            });
            self.reports[place] = Report::new(verb, decision.source, verdicts.copied().collect());
        }
        Ok(())
    }
}
