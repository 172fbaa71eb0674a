//! `tidegate simulate`: arguments and output. Imports: nothing.

mod table;

use std::fmt::Display;
use std::path::PathBuf;

use clap::Args;
use tidegate::simulate::{CallProfile, Candidate, Report, Simulation, SimulationError, Traffic};
use tidegate::{Micros, Span};

use crate::error::{CliError, ExitStatus};
use crate::number_args;
use crate::output::print;
use tidegate_server::internal::chart;

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  A fixed window around its boundary, compared with a sliding log:
    tidegate simulate --limit 'fixed-window 100/10s' --limit 'sliding-log 100/10s' \\
        --traffic 'burst 100 every 7s for 1m'
  Skewed traffic, with an SVG chart:
    tidegate simulate --limit '20/s burst 40' --limit 'sliding-window 1200/1m' \\
        --traffic 'poisson 1000/s keys 200 zipf 1.1 for 10m' --plot crowd.svg
  Several limits decided together, joined with +:
    tidegate simulate --limit '20/s + fixed-window 600/1m' --traffic 'ramp 0/s to 50/s for 2m'
  Calls that reserve tokens and commit what they used, beside gateways that do not:
    tidegate simulate --limit 'fixed-window 10000/1m' --traffic 'poisson 2/s for 20m' \\
        --calls 'estimate 800 cost 100..800 takes 2s..90s'
  Concurrency limits need a hold time:
    tidegate simulate --limit 'concurrency 20' --hold 200ms --traffic 'poisson 120/s for 1m'

Traffic, joined with \" + \":
  steady 120/s         evenly spaced            keys N [zipf S]  number of keys, Zipf exponent
  poisson 80/s         random arrivals          after SPAN       start time [default: 0]
  burst 500 every 10s  all at once              for SPAN         duration [default: 1m]
  ramp 0/s to 200/s    rising or falling

The same seed gives the same output to the byte. Time begins on Monday, 1 January 2024, 00:00 UTC.")]
pub(crate) struct Options {
    /// Limit to simulate; repeatable, each on the same requests
    #[arg(long = "limit", value_name = "LIMIT", required = true)]
    limits: Vec<String>,
    /// Traffic, for example 'steady 120/s for 60s'
    #[arg(long, value_name = "SPEC")]
    traffic: String,
    /// Random seed
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = number_args::seed)]
    seed: u64,
    /// Hold time of a concurrency slot
    #[arg(long, value_name = "SPAN")]
    hold: Option<Span>,
    /// Estimate, cost and duration of calls that reserve; see the examples
    #[arg(long, value_name = "SPEC")]
    calls: Option<CallProfile>,
    /// Write an SVG chart to this file
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
    /// Print the report as one line of JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(options: &Options) -> Result<ExitStatus, CliError> {
    let report = simulate(options)?;
    if let Some(path) = &options.plot {
        std::fs::write(path, chart::svg(&report))
            .map_err(|error| format!("cannot write {}: {error}", path.display()))?;
    }
    let text = match options.json {
        true => serde_json::to_string(&report)? + "\n",
        false => table::to_text(&report),
    };
    print(text.as_bytes())?;
    Ok(ExitStatus::Success)
}

fn simulate(options: &Options) -> Result<Report, CliError> {
    let traffic: Traffic =
        options.traffic.parse().map_err(|error: tidegate::simulate::ParseTrafficError| {
            invalid("traffic", &error, &error.underline(&options.traffic))
        })?;
    let candidate = |text: &String| {
        text.parse::<Candidate>().map_err(|error| invalid("limit", &error, &error.underline(text)))
    };
    let candidates = options.limits.iter().map(candidate).collect::<Result<Vec<_>, _>>()?;
    let mut simulation = Simulation::new(traffic).seed(options.seed);
    if let Some(hold) = options.hold {
        simulation = simulation.hold_time(length(hold)?);
    }
    if let Some(calls) = options.calls {
        simulation = simulation.calls(calls);
    }
    simulation.run(&candidates).map_err(|error| match error {
        SimulationError::NoHold => format!("{error}, for example --hold 200ms").into(),
        error => error.into(),
    })
}

/// Error with the invalid part of the argument underlined.
fn invalid(argument: &str, error: &dyn Display, underlined: &str) -> CliError {
    let underlined = underlined.replace('\n', "\n  ");
    format!("--{argument}: {error}\n  {underlined}").into()
}

fn length(span: Span) -> Result<Micros, &'static str> {
    span.length().ok_or("--hold: a month has no fixed length; use days")
}
