//! Evaluates limits on generated traffic, before they are enforced. Imports: engine.
//!
//! ```
//! use tidegate::simulate::Simulation;
//! let report = Simulation::new("burst 100 every 7s for 1m".parse()?)
//!     .run(&["fixed-window 100/10s".parse()?, "sliding-log 100/10s".parse()?])?;
//! let [fixed, log] = &*report.runs else { unreachable!() };
//! assert_eq!(fixed.limits[0].worst.admitted, 200, "two adjacent windows are full");
//! assert_eq!(log.limits[0].worst.admitted, 100);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Time is simulated: it starts on Monday, 1 January 2024, at midnight UTC, and runs as fast as the
//! arithmetic. The same traffic and seed give the same numbers on every platform; nothing is
//! computed in floating point.
//!
//! # Layout
//!
//! - [`Traffic`]: the offered requests, in a notation (`parse`; [`ParseTrafficError`] for invalid
//!   text). `arrivals` generates requests, with `rng` as the random source and `zipf` for skewed
//!   keys. `bounds`: largest traffic.
//! - [`Candidate`]: one limit, or several that are decided in one step.
//! - [`Simulation`]: runs candidates on the same traffic. `evaluate` decides as an engine does,
//!   with the arithmetic of `tidegate-core`; `counts` counts the results.
//! - [`CallProfile`]: requests whose cost is known only at their end. `calls_run`: by
//!   several methods of spending a budget.
//! - [`Report`]: the numbers, on the steps of a [`TimeAxis`]. [`Guarantee`]: the upper bound of a
//!   limit. `worst_window` computes it from the decisions, independently of how they were made.
//!   `json`: reports as JSON, with the feature `serde`.

mod arrivals;
mod bounds;
mod calls;
mod calls_run;
mod candidate;
mod counts;
mod error;
mod evaluate;
mod guarantee;
#[cfg(feature = "serde")]
mod json;
mod parse;
mod report;
mod rng;
mod simulation;
mod time_axis;
mod traffic;
mod worst_window;
mod zipf;

pub use arrivals::Arrival;
pub use calls::{BudgetMethod, CallProfile, MethodReport, ParseCallsError};
pub use candidate::{Candidate, ParseCandidateError};
pub use error::{InvalidTraffic, ParseTrafficError};
pub use evaluate::SimulatedDecision;
pub use guarantee::Guarantee;
pub use report::{CandidateReport, Fairness, LimitReport, Report, WorstWindow};
pub use time_axis::{START, TimeAxis};
// `tidegate bench` chooses keys in the same way; the server samples with it.
#[doc(hidden)]
pub use rng::Rng;
pub use simulation::{Simulation, SimulationError};
pub use traffic::Traffic;
#[doc(hidden)]
pub use zipf::KeyDistribution;
