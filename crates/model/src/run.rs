//! Runs one trace against one system under test.

use std::collections::BTreeMap;
use std::fmt;
use std::io::Write as _;

use crate::trace::Trace;
use crate::{ExpectedWorld, ModelAnswer, ModelCall, ModelOp, ModelQuantity, Profile, Spec, System};

#[derive(Clone, Default, Debug)]
pub struct Stats {
    pub calls: u64,
    pub denied: u64,
    /// Changes of a limit.
    pub changes: u64,
    /// Extensions of holds that had not expired.
    pub extensions: u64,
    /// Holds that were granted less than they wanted.
    pub partial_grants: u64,
    /// Calls at an earlier instant than the previous call.
    pub steps_back: u64,
    /// Verdicts, by algorithm and mode.
    pub verdicts: BTreeMap<&'static str, u64>,
}

impl Stats {
    /// Adds the numbers of another trace.
    pub fn add(&mut self, other: &Self) {
        self.calls += other.calls;
        self.denied += other.denied;
        self.changes += other.changes;
        self.extensions += other.extensions;
        self.partial_grants += other.partial_grants;
        self.steps_back += other.steps_back;
        for (name, count) in &other.verdicts {
            *self.verdicts.entry(name).or_default() += count;
        }
    }
}

/// A wrong result, and the calls that led to it.
#[derive(Clone, Debug)]
pub struct Mismatch {
    seed: u64,
    specs: Vec<Spec>,
    calls: Vec<ModelCall>,
    expected: String,
    got: ModelAnswer,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "seed {} (TIDEGATE_SEED={})", self.seed, self.seed)?;
        for (index, spec) in self.specs.iter().enumerate() {
            writeln!(f, "cell {index}: {spec:?}")?;
        }
        for ModelCall { now, op, parts } in &self.calls {
            let parts: Vec<_> = parts.iter().map(|part| (part.cell, part.cost)).collect();
            writeln!(f, "at {now}: {op:?} of (cell, cost) {parts:?}")?;
        }
        writeln!(f, "{}", self.expected)?;
        write!(f, "got {:?}", self.got)
    }
}

/// Runs the trace of `seed` and compares every result with the model. `make` is given the limits of
/// the cells.
pub fn run<S: System>(
    seed: u64,
    profile: Profile,
    make: impl FnOnce(&[Spec]) -> S,
) -> Result<Stats, Box<Mismatch>> {
    let mut trace = Trace::new(seed, profile);
    let first = trace.specs().to_vec();
    let mut world = ExpectedWorld::new(&first, profile.model);
    let mut system = make(&first);
    let mut stats = Stats::default();
    let mut calls: Vec<ModelCall> = Vec::new();
    let _named = PrintOnPanic(format!("in the trace of TIDEGATE_SEED={seed}"));
    for _ in 0..trace.len() {
        let call = trace.next(&world);
        stats.steps_back += u64::from(calls.last().is_some_and(|last| call.now < last.now));
        calls.push(call.clone());
        let got = system.apply(&call);
        if let Err(expected) = world.judge(&call, &got) {
            return Err(Box::new(Mismatch { seed, specs: first, calls, expected, got }));
        }
        if matches!(call.op, ModelOp::Swap(_) | ModelOp::Change(_)) {
            stats.changes += 1;
        }
        if matches!(call.op, ModelOp::Swap(_)) {
            trace.record_result(&call, &got);
            continue;
        }
        stats.calls += 1;
        let is_extension = matches!(call.op, ModelOp::Extend { .. }) && !got.expired;
        stats.extensions += u64::from(is_extension);
        let is_partial = |quantity: ModelQuantity| got.granted.is_some_and(|g| g < quantity.want);
        let quantity = match call.op {
            ModelOp::Hold { quantity, .. } => quantity,
            _ => None,
        };
        stats.partial_grants += u64::from(quantity.is_some_and(is_partial));
        stats.denied += got.verdicts.iter().filter(|verdict| !verdict.allowed).count() as u64;
        for part in &call.parts {
            *stats.verdicts.entry(trace.specs()[part.cell].name()).or_default() += 1;
        }
        trace.record_result(&call, &got);
    }
    Ok(stats)
}

/// Prints the text, such as the seed, if the thread panics while this value exists.
#[derive(Debug)]
pub struct PrintOnPanic(pub String);

impl Drop for PrintOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            print_line(&self.0);
        }
    }
}

/// Prints a line that the test harness does not capture.
pub fn print_line(line: &str) {
    let mut err = std::io::stderr().lock();
    let _ = writeln!(err, "{line}");
}
