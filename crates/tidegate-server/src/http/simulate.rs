//! Limits on imagined traffic.

use std::time::Duration;

use axum::extract::{Request, State};
use axum::response::Response;
use http::StatusCode;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tidegate::simulate::{
    Candidate, Fairness, LimitRun, NotSimulated, Report, Run, Simulation, Traffic,
};
use tidegate::{Micros, Wait};
use tokio::sync::Semaphore;

use super::problem::Problem;
use super::{Door, ok, read_json};
use crate::plot;
use crate::tokens::Access;

/// The most decisions in one call: requests, times the limits that are asked about each. They take some
/// tens of milliseconds.
const MAX_DECISIONS: u64 = 200_000;
/// The most keys in one call.
const MAX_KEYS: u32 = 10_000;
/// How long a call waits for those before it. There is one simulation at a time, whoever asks.
const PATIENCE: Duration = Duration::from_secs(2);

/// What is to be tried.
#[derive(Clone, Deserialize, JsonSchema, Debug)]
#[serde(deny_unknown_fields)]
pub(super) struct SimulateBody {
    /// The limits, each tried by itself on the same requests. One that joins several with ` + ` is
    /// decided in one step.
    #[schemars(length(min = 1, max = 16))]
    limits: Vec<String>,
    /// What comes, like `steady 120/s for 60s`. At most 200000 decisions and 10000 keys.
    traffic: String,
    /// What chance begins with; 1 unless given.
    #[serde(default)]
    seed: Option<u64>,
    /// How long holders of a `concurrency` limit stay.
    #[serde(default)]
    #[schemars(range(min = 1, max = 86_400_000))]
    hold_ms: Option<u64>,
    /// Is a picture wanted?
    #[serde(default)]
    plot: bool,
}

/// What came of it.
#[derive(Serialize, JsonSchema, Debug)]
pub(crate) struct ReportBody {
    /// The traffic as it was understood.
    traffic: String,
    /// What chance began with.
    seed: u64,
    /// How many requests came.
    offered: u64,
    /// How many keys they had.
    keys: u64,
    /// The number of the key that asked most often, from 1.
    busiest_key: u32,
    /// How long the traffic lasts.
    span_us: u64,
    /// How long a step of every series is.
    step_us: u64,
    /// How many requests came in each step.
    offered_series: Vec<u64>,
    /// What became of them under each limit, in the order in which they were named.
    limits: Vec<RunBody>,
    /// The picture, if it was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    svg: Option<String>,
}

/// What became of the traffic under one limit, or several in one step.
#[derive(Serialize, JsonSchema, Debug)]
struct RunBody {
    /// The limit as it was understood.
    limit: String,
    /// How many were let pass.
    admitted: u64,
    /// How many were not.
    denied: u64,
    /// The longest that somebody was told to come back after; null if nobody was, or for ever.
    longest_wait_ms: Option<u64>,
    /// Was somebody told never to come back?
    never: bool,
    /// The longest that somebody who was let pass had to wait for the turn.
    longest_delay_ms: u64,
    /// How evenly keys were served; null unless there are several.
    fairness: Option<FairnessBody>,
    /// How many passed in each step: at their turn, where they were given one.
    passed_series: Vec<u64>,
    /// How many have their turn after the end.
    passed_later: u64,
    /// How many were denied in each step.
    denied_series: Vec<u64>,
    /// Each limit by itself.
    parts: Vec<PartBody>,
}

/// How evenly keys were served: of each, the share of its requests that was let pass.
#[derive(Serialize, JsonSchema, Debug)]
struct FairnessBody {
    /// Jain's index of the shares: 1 if all are alike.
    index: f64,
    /// The share of the key that was served worst.
    least: f64,
    /// The share of the key that was served best.
    most: f64,
}

/// What one limit did.
#[derive(Serialize, JsonSchema, Debug)]
struct PartBody {
    /// The limit.
    limit: String,
    /// How many requests it said no to.
    denied: u64,
    /// How long the window is that it promises something for.
    window_us: u64,
    /// What it promises: at most so many in any window.
    promised: u64,
    /// The most that passed in any window.
    worst: u64,
    /// When that window begins.
    worst_begins_us: u64,
    /// Whose it is, from 1.
    worst_key: u32,
    /// The busiest key: the most in the window, in each step.
    window_series: Vec<u64>,
    /// The busiest key: the most that was used, in each step.
    used_series: Vec<u64>,
}

/// `POST /v1/simulate`
pub(super) async fn simulate(
    State(door): State<Door>,
    request: Request,
) -> Result<Response, Problem> {
    door.admit(Access::Check, request.headers())?;
    let body: SimulateBody = read_json(request).await?;
    let plot = body.plot;
    let tell = move |report: &Report| ReportBody::new(report, plot.then(|| plot::svg(report)));
    Ok(ok(&body.task()?.run(tell).await?))
}

/// Something that may be tried: no more than one call may ask for.
pub(crate) struct Task {
    simulation: Simulation,
    candidates: Vec<Candidate>,
}

impl SimulateBody {
    fn task(&self) -> Result<Task, Problem> {
        let traffic: Traffic =
            self.traffic.parse().map_err(|error| Problem::field("traffic", format!("{error}")))?;
        if self.limits.is_empty() || self.limits.len() > Simulation::MAX_CANDIDATES {
            let error = NotSimulated::CandidateCount(self.limits.len());
            return Err(Problem::field("limits", error.to_string()));
        }
        let candidate = |(place, text): (usize, &String)| {
            let faulty = |error| Problem::field(format!("limits[{place}]"), format!("{error}"));
            text.parse::<Candidate>().map_err(faulty)
        };
        let candidates =
            self.limits.iter().enumerate().map(candidate).collect::<Result<Vec<_>, _>>()?;
        let hold = self.hold_ms.map(Micros::from_millis);
        Task::new(candidates, traffic, self.seed.unwrap_or(1), hold)
    }
}

impl Task {
    /// What chance begins with is `seed`; holders stay for `hold`.
    pub(crate) fn new(
        candidates: Vec<Candidate>,
        traffic: Traffic,
        seed: u64,
        hold: Option<Micros>,
    ) -> Result<Self, Problem> {
        const MOST_HOLD: Micros = Micros::from_secs(86_400);
        let limits: u64 =
            candidates.iter().map(|candidate| candidate.limits().count() as u64).sum();
        let decisions = traffic.requests().saturating_mul(limits);
        if decisions > MAX_DECISIONS {
            let detail = format!(
                "{decisions} decisions are too many for one call; at most {MAX_DECISIONS}: lower a rate, \
                 shorten a span, or use tidegate simulate"
            );
            return Err(Problem::field("traffic", detail));
        }
        if traffic.keys() > MAX_KEYS {
            let detail =
                format!("{} keys are too many for one call; at most {MAX_KEYS}", traffic.keys());
            return Err(Problem::field("traffic", detail));
        }
        let mut simulation = Simulation::new(traffic).seed(seed);
        match hold {
            Some(hold) if hold > Micros::ZERO && hold <= MOST_HOLD => {
                simulation = simulation.hold(hold);
            }
            Some(_) => return Err(Problem::field("hold_ms", "use 1 to 86400000")),
            None => {}
        }
        Ok(Self { simulation, candidates })
    }

    /// Tries it when its turn has come, and has something made of the report.
    pub(crate) async fn run<T: Send + 'static>(
        self,
        tell: impl FnOnce(&Report) -> T + Send + 'static,
    ) -> Result<T, Problem> {
        static ONE_AT_A_TIME: Semaphore = Semaphore::const_new(1);
        let busy = || {
            let detail = "others are being simulated; ask again later";
            Problem::new(StatusCode::SERVICE_UNAVAILABLE, detail)
        };
        let turn = tokio::time::timeout(PATIENCE, ONE_AT_A_TIME.acquire()).await;
        let turn = turn.ok().and_then(Result::ok).ok_or_else(busy)?;
        // The turn goes along: whoever hangs up does not make room for another before it is over.
        let done = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            let report = self.simulation.run(&self.candidates).map_err(|error| {
                let field = if error == NotSimulated::NoHold { "hold_ms" } else { "limits" };
                Problem::field(field, error.to_string())
            })?;
            Ok(tell(&report))
        });
        done.await.map_err(|_| {
            Problem::new(StatusCode::SERVICE_UNAVAILABLE, "the simulation did not end")
        })?
    }
}

impl ReportBody {
    /// The report, with a picture or without.
    pub(crate) fn new(report: &Report, svg: Option<String>) -> Self {
        Self {
            traffic: report.traffic.to_string(),
            seed: report.seed,
            offered: report.offered,
            keys: report.keys,
            busiest_key: report.busiest.0 + 1,
            span_us: report.axis.span.get(),
            step_us: report.axis.step.get(),
            offered_series: report.offered_series.clone(),
            limits: report.runs.iter().map(RunBody::from).collect(),
            svg,
        }
    }
}

impl From<&Run> for RunBody {
    fn from(run: &Run) -> Self {
        Self {
            limit: run.candidate.to_string(),
            admitted: run.admitted,
            denied: run.denied,
            longest_wait_ms: run.longest_wait.and_then(Wait::span).map(millis),
            never: run.longest_wait == Some(Wait::Never),
            longest_delay_ms: millis(run.longest_delay),
            fairness: run.fairness.map(FairnessBody::from),
            passed_series: run.passed_series.clone(),
            passed_later: run.passed_later,
            denied_series: run.denied_series.clone(),
            parts: run.limits.iter().map(PartBody::from).collect(),
        }
    }
}

impl From<Fairness> for FairnessBody {
    fn from(fair: Fairness) -> Self {
        let [index, least, most] =
            [fair.index, fair.least, fair.most].map(|share| share as f64 / 1e6);
        Self { index, least, most }
    }
}

impl From<&LimitRun> for PartBody {
    fn from(run: &LimitRun) -> Self {
        Self {
            limit: run.limit.to_string(),
            denied: run.denied,
            window_us: run.promise.window.get(),
            promised: run.promise.at_most,
            worst: run.worst.admitted,
            worst_begins_us: run.worst.begins.get(),
            worst_key: run.worst.key + 1,
            window_series: run.window_series.clone(),
            used_series: run.used_series.clone(),
        }
    }
}

/// Rounded up: nobody is told to come back too early.
fn millis(span: Micros) -> u64 {
    span.get().div_ceil(1_000)
}
