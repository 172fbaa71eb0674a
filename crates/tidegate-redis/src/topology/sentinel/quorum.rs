//! The latest report of each sentinel, and the majority when they disagree.

use std::time::Duration;

use tokio::time::Instant;

use crate::connection::endpoint::Endpoint;
use crate::connection::error::ConnectFailure;
use crate::topology::deployment::SentinelConfig;

/// Older reports do not count: a sentinel is polled every second.
const RECENT: Duration = Duration::from_secs(3);

/// The latest report of every sentinel.
pub(crate) struct SentinelVotes {
    latest: Vec<Option<(SentinelReport, Instant)>>,
    /// An endpoint that is not the primary; reports that name it before this instant are ignored.
    ignored: Option<(Endpoint, Instant)>,
}

/// What a sentinel reports.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum SentinelReport {
    /// The endpoint of the primary.
    At(Endpoint),
    /// The sentinel monitors no master of this name.
    Unknown,
    /// The sentinel does not reply, for this reason.
    NoReply(String),
}

impl SentinelVotes {
    pub(crate) fn new(count: usize) -> Self {
        Self { latest: vec![None; count], ignored: None }
    }

    pub(crate) fn record(&mut self, sentinel: usize, report: SentinelReport, now: Instant) {
        if let Some(latest) = self.latest.get_mut(sentinel) {
            *latest = Some((report, now));
        }
    }

    /// Ignores reports that name `endpoint` before `until`: these sentinels have outdated
    /// information. Only the latest such endpoint is kept, since its predecessor led to it.
    pub(crate) fn ignore_until(&mut self, endpoint: Endpoint, until: Instant) {
        self.ignored = Some((endpoint, until));
    }

    pub(crate) fn is_ignored(&self, endpoint: &Endpoint, now: Instant) -> bool {
        self.ignored.as_ref().is_some_and(|(other, until)| other == endpoint && now < *until)
    }

    /// The endpoint that more than half of the reports that count name. If no primary is known yet,
    /// the one with the most votes, or the first of several. None if the primary stays.
    pub(crate) fn majority(&self, present: Option<&Endpoint>, now: Instant) -> Option<&Endpoint> {
        let named: Vec<&Endpoint> =
            self.latest.iter().flatten().filter_map(|l| self.counts(l, now)).collect();
        let votes = |endpoint: &Endpoint| named.iter().filter(|other| **other == endpoint).count();
        let mut most: Option<&Endpoint> = None;
        for endpoint in &named {
            if most.is_none_or(|most| votes(endpoint) > votes(most)) {
                most = Some(endpoint);
            }
        }
        most.filter(|most| match present {
            Some(present) => present != *most && 2 * votes(most) > named.len(),
            None => true,
        })
    }

    fn counts<'a>(
        &self,
        (report, at): &'a (SentinelReport, Instant),
        now: Instant,
    ) -> Option<&'a Endpoint> {
        let SentinelReport::At(endpoint) = report else { return None };
        let counts = now.duration_since(*at) < RECENT && !self.is_ignored(endpoint, now);
        counts.then_some(endpoint)
    }

    /// Why the primary is not known.
    pub(crate) fn failure(&self, sentinels: &SentinelConfig) -> ConnectFailure {
        let master = &sentinels.master;
        let reports = || self.latest.iter().map(|latest| latest.as_ref().map(|(report, _)| report));
        if reports().flatten().any(|report| *report == SentinelReport::Unknown) {
            let text = format!("Sentinel monitors no master named {master:?}");
            return ConnectFailure(text + "; use its configured name");
        }
        let why = |(endpoint, report): (&Endpoint, Option<&SentinelReport>)| match report {
            Some(SentinelReport::NoReply(why)) => Some(format!("{endpoint}: {why}")),
            _ => None,
        };
        let why: Vec<String> = sentinels.endpoints.iter().zip(reports()).filter_map(why).collect();
        let why = why.join(", ");
        let text = format!("no sentinel of {master:?} replies ({why})");
        ConnectFailure(text + "; check that they are running")
    }
}
