//! Limits on imagined traffic, before anybody is locked out by them.
//!
//! ```
//! use tidegate::simulate::Simulation;
//! let report = Simulation::new("burst 100 every 7s for 1m".parse()?)
//!     .run(&["fixed-window 100/10s".parse()?, "sliding-log 100/10s".parse()?])?;
//! let [fixed, log] = &*report.runs else { unreachable!() };
//! assert_eq!(fixed.limits[0].worst.admitted, 200, "two windows meet, and both are full");
//! assert_eq!(log.limits[0].worst.admitted, 100);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Time is only imagined as well: it begins on a Monday, the first of January 2024, at midnight UTC, and
//! passes as fast as the arithmetic does. The same traffic and seed give the same numbers everywhere;
//! nothing is computed in floating point.
//!
//! # Layout
//!
//! - [`Traffic`]: what is offered, in a notation of its own (`parse`; [`ParseTrafficError`] says what is
//!   wrong with a bad one). `arrivals` makes requests of it, with `rng` for what is left to chance and `zipf`
//!   for keys that are not alike.
//! - [`Candidate`]: a limit, or several that are decided in one step.
//! - [`Simulation`]: runs candidates on the same traffic. `meters` decides as an engine does, with the
//!   arithmetic of `tidegate-core`; `tally` counts what comes of it.
//! - [`Report`]: the numbers. [`Promise`]: what a limit may honestly be held to. `worst` looks at raw
//!   decisions, and knows nothing of how they were made.

mod arrivals;
mod axis;
mod candidate;
mod error;
mod meters;
mod parse;
mod promise;
mod report;
mod rng;
mod simulation;
mod tally;
mod traffic;
mod worst;
mod zipf;

pub use arrivals::Arrival;
pub use axis::Axis;
pub use candidate::{Candidate, ParseCandidateError};
pub use error::{InvalidTraffic, ParseTrafficError};
pub use meters::Told;
pub use promise::Promise;
pub use report::{Fairness, LimitRun, Report, Run, Worst};
// What `tidegate bench` asks about is chosen as simulated requests are.
#[doc(hidden)]
pub use rng::Rng;
pub use simulation::{NotSimulated, START, Simulation};
pub use traffic::Traffic;
#[doc(hidden)]
pub use zipf::Keys;
