//! `POST /v1/simulate`: limits on synthetic traffic.

use axum::extract::{Request, State};
use axum::response::Response;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tidegate::Micros;
use tidegate::simulate::{
    BudgetMethod, CallProfile, Candidate, Report, Simulation, SimulationError, Traffic,
};
use tokio::sync::Semaphore;

use crate::chart;
use crate::transport::auth::AccessLevel;
use crate::transport::http::problem::HttpProblem;
use crate::transport::http::response;
use crate::transport::http::run_blocking::run_blocking;
use crate::transport::http::state::AppState;

/// Most decisions in one call: requests times limits. They take some tens of milliseconds.
const MAX_DECISIONS: u64 = 200_000;
/// Most keys in one call.
const MAX_KEYS: u32 = 10_000;

/// Simulation request.
#[derive(Clone, Deserialize, JsonSchema, Debug)]
#[serde(deny_unknown_fields)]
pub(crate) struct SimulateBody {
    /// Limits, each simulated on the same requests. Limits joined with ` + ` are decided together.
    #[schemars(length(min = 1, max = 16))]
    limits: Vec<String>,
    /// Traffic, for example `steady 120/s for 60s`. At most 200000 decisions and 10000 keys.
    traffic: String,
    /// Random seed; default 1.
    #[serde(default)]
    seed: Option<u64>,
    /// Hold time of a concurrency slot.
    #[serde(default)]
    #[schemars(range(min = 1, max = 86_400_000))]
    hold_ms: Option<u64>,
    /// Lets the requests be calls that reserve an estimate and cost something else at their end:
    /// `estimate 800 cost 100..4000 takes 2s..90s`. Counts as three more limits for each.
    #[serde(default)]
    calls: Option<String>,
    /// Include an SVG chart.
    #[serde(default)]
    plot: bool,
}

/// Simulation report.
#[derive(Serialize, JsonSchema, Debug)]
pub(crate) struct SimulateResponse {
    #[serde(flatten)]
    report: Report,
    /// SVG chart, if requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    svg: Option<String>,
}

/// `POST /v1/simulate`
pub(crate) async fn simulate(
    State(app): State<AppState>,
    request: Request,
) -> Result<Response, HttpProblem> {
    let body: SimulateBody = app.read_json(AccessLevel::Check, request).await?;
    let plot = body.plot;
    let render = move |report: Report| {
        let svg = plot.then(|| chart::svg(&report));
        SimulateResponse { report, svg }
    };
    Ok(response::ok(&body.job()?.run(render).await?))
}

/// A simulation within the bounds of one call.
pub(crate) struct SimulationJob {
    simulation: Simulation,
    candidates: Vec<Candidate>,
}

impl SimulateBody {
    fn job(&self) -> Result<SimulationJob, HttpProblem> {
        let traffic: Traffic = self
            .traffic
            .parse()
            .map_err(|error| HttpProblem::field("traffic", format!("{error}")))?;
        if self.limits.is_empty() || self.limits.len() > Simulation::MAX_CANDIDATES {
            let error = SimulationError::CandidateCount(self.limits.len());
            return Err(HttpProblem::field("limits", error.to_string()));
        }
        let candidate = |(place, text): (usize, &String)| {
            let invalid =
                |error| HttpProblem::field(format!("limits[{place}]"), format!("{error}"));
            text.parse::<Candidate>().map_err(invalid)
        };
        let candidates =
            self.limits.iter().enumerate().map(candidate).collect::<Result<Vec<_>, _>>()?;
        let hold = self.hold_ms.map(Micros::from_millis);
        let calls = self.calls.as_deref().map(str::parse::<CallProfile>).transpose();
        let calls = calls.map_err(|error| HttpProblem::field("calls", error.to_string()))?;
        SimulationJob::new(candidates, traffic, self.seed.unwrap_or(1), hold, calls)
    }
}

impl SimulationJob {
    /// `hold` is the hold time of a concurrency slot. Refuses traffic above the bounds of one call.
    pub(crate) fn new(
        candidates: Vec<Candidate>,
        traffic: Traffic,
        seed: u64,
        hold: Option<Micros>,
        calls: Option<CallProfile>,
    ) -> Result<Self, HttpProblem> {
        const MAX_HOLD: Micros = Micros::from_secs(86_400);
        let limits: u64 =
            candidates.iter().map(|candidate| candidate.limits().count() as u64).sum();
        let runs = if calls.is_some() { 1 + BudgetMethod::ALL.len() as u64 } else { 1 };
        let decisions = traffic.requests().saturating_mul(limits * runs);
        if decisions > MAX_DECISIONS {
            let detail = format!(
                "{decisions} decisions exceed the maximum of {MAX_DECISIONS} per call; lower the \
                 rate or duration, or use tidegate simulate"
            );
            return Err(HttpProblem::field("traffic", detail));
        }
        if traffic.keys() > MAX_KEYS {
            let detail =
                format!("{} keys exceed the maximum of {MAX_KEYS} per call", traffic.keys());
            return Err(HttpProblem::field("traffic", detail));
        }
        let mut simulation = Simulation::new(traffic).seed(seed);
        if let Some(calls) = calls {
            simulation = simulation.calls(calls);
        }
        match hold {
            Some(hold) if hold > Micros::ZERO && hold <= MAX_HOLD => {
                simulation = simulation.hold_time(hold);
            }
            Some(_) => return Err(HttpProblem::field("hold_ms", "use 1 to 86400000")),
            None => {}
        }
        Ok(Self { simulation, candidates })
    }

    /// Runs the simulation after those before it, on a blocking thread, and renders the report.
    pub(crate) async fn run<T: Send + 'static>(
        self,
        render: impl FnOnce(Report) -> T + Send + 'static,
    ) -> Result<T, HttpProblem> {
        static ONE_AT_A_TIME: Semaphore = Semaphore::const_new(1);
        let simulate = move || {
            let report = self.simulation.run(&self.candidates).map_err(|error| {
                let field = if error == SimulationError::NoHold { "hold_ms" } else { "limits" };
                HttpProblem::field(field, error.to_string())
            })?;
            Ok(render(report))
        };
        run_blocking(&ONE_AT_A_TIME, "simulation", simulate).await?
    }
}
