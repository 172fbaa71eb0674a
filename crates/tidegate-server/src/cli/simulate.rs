//! `tidegate simulate`

use std::fmt::Display;
use std::io::{self, IsTerminal};
use std::path::PathBuf;

use clap::Args;
use tidegate::simulate::{Candidate, NotSimulated, Report, Simulation, Traffic};
use tidegate::{Micros, Span};

use super::{Failure, Outcome, has_colours, print};
use crate::http::ReportBody;
use crate::plot::{self, Colours, Terminal};

/// Tries limits on imagined traffic, before anybody is locked out by them.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  What a fixed window lets through around its boundary, beside one that slides:
    tidegate simulate --limit 'fixed-window 100/10s' --limit 'sliding-log 100/10s' \\
        --traffic 'burst 100 every 7s for 1m'
  A crowd in which some ask more than others, and a picture of it:
    tidegate simulate --limit '20/s burst 40' --limit 'sliding-window 1200/1m' \\
        --traffic 'poisson 1000/s keys 200 zipf 1.1 for 10m' --plot crowd.svg
  Two limits that are decided in one step, joined with a plus:
    tidegate simulate --limit '20/s + fixed-window 600/1m' --traffic 'ramp 0/s to 50/s for 2m'
  Holders need to be told how long each stays:
    tidegate simulate --limit 'concurrency 20' --hold 200ms --traffic 'poisson 120/s for 1m'

Traffic, joined with \" + \":
  steady 120/s         evenly spaced            keys N [zipf S]  whose: the k-th 1/k^S as often
  poisson 80/s         left to chance           after SPAN       when it begins
  burst 500 every 10s  all at once              for SPAN         how long it lasts, 1m unless said
  ramp 0/s to 200/s    more and more, or less

The same seed gives the same output to the byte. Time begins on Monday, 1 January 2024, 00:00 UTC.")]
pub(super) struct Options {
    /// A limit to try; several are tried side by side on the same requests
    #[arg(long = "limit", value_name = "LIMIT", required = true)]
    limits: Vec<String>,
    /// What comes, like 'steady 120/s for 60s'
    #[arg(long, value_name = "SPEC")]
    traffic: String,
    /// What chance begins with
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// How long holders of a concurrency limit stay
    #[arg(long, value_name = "SPAN")]
    hold: Option<Span>,
    /// Write a picture to this file
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
    /// Print everything as one line of JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(options: &Options) -> Result<Outcome, Failure> {
    let report = simulate(options)?;
    if let Some(path) = &options.plot {
        std::fs::write(path, plot::svg(&report))
            .map_err(|error| format!("cannot write {}: {error}", path.display()))?;
    }
    let text = match options.json {
        true => serde_json::to_string(&ReportBody::new(&report, None))? + "\n",
        false => plot::in_words(&report, &terminal()),
    };
    print(text.as_bytes())?;
    Ok(Outcome::Good)
}

fn simulate(options: &Options) -> Result<Report, Failure> {
    let traffic: Traffic =
        options.traffic.parse().map_err(|error: tidegate::simulate::ParseTrafficError| {
            faulty("traffic", &error, &error.underline(&options.traffic))
        })?;
    let candidate = |text: &String| {
        text.parse::<Candidate>().map_err(|error| faulty("limit", &error, &error.underline(text)))
    };
    let candidates = options.limits.iter().map(candidate).collect::<Result<Vec<_>, _>>()?;
    let mut simulation = Simulation::new(traffic).seed(options.seed);
    if let Some(hold) = options.hold {
        simulation = simulation.hold(length(hold)?);
    }
    simulation.run(&candidates).map_err(|error| match error {
        NotSimulated::NoHold => format!("{error}, like --hold 200ms").into(),
        error => error.into(),
    })
}

/// What is wrong with an argument, and where.
fn faulty(argument: &str, error: &dyn Display, underlined: &str) -> Failure {
    let underlined = underlined.replace('\n', "\n  ");
    format!("--{argument}: {error}\n  {underlined}").into()
}

fn length(span: Span) -> Result<Micros, &'static str> {
    span.length().ok_or("--hold: a month has no fixed length; use days")
}

/// What standard output is.
fn terminal() -> Terminal {
    let stdout = io::stdout();
    let colours = if has_colours() { Colours::On } else { Colours::Off };
    let width = match stdout.is_terminal() {
        true => rustix::termios::tcgetwinsize(&stdout).ok().map(|size| usize::from(size.ws_col)),
        false => None,
    };
    Terminal { width: width.filter(|width| *width > 0).unwrap_or(80), colours }
}
