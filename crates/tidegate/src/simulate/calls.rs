//! Calls that reserve an estimate, take a while, and cost what is known at their end.

use std::fmt;
use std::str::FromStr;

use tidegate_core::{Cost, Micros, Span};

/// What a simulated request reserves, what it really costs, and how long it takes; each is uniform
/// in a range.
///
/// ```
/// use tidegate::simulate::CallProfile;
/// let calls: CallProfile = "estimate 800 cost 100..4000 takes 2s..90s".parse()?;
/// assert_eq!(calls.to_string(), "estimate 800 cost 100..4000 takes 2s..90s");
/// # Ok::<(), tidegate::simulate::ParseCallsError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CallProfile {
    pub(super) estimate: (u64, u64),
    pub(super) cost: (u64, u64),
    /// In microseconds.
    pub(super) takes: (u64, u64),
}

/// Why a text is no [`CallProfile`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ParseCallsError(String);

impl fmt::Display for ParseCallsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; write calls like estimate 800 cost 100..4000 takes 2s..90s", self.0)
    }
}

impl std::error::Error for ParseCallsError {}

/// The longest call.
const MAX_TAKES: Micros = Micros::from_secs(86_400);

impl FromStr for CallProfile {
    type Err = ParseCallsError;

    fn from_str(text: &str) -> Result<Self, ParseCallsError> {
        let wrong = |why: String| Err(ParseCallsError(why));
        let (mut estimate, mut cost, mut takes) = (None, None, None);
        let words: Vec<&str> = text.split_whitespace().collect();
        for pair in words.chunks(2) {
            let (name, value) = (pair[0], pair.get(1).copied().unwrap_or_default());
            let before = match name {
                "estimate" => estimate.replace(range(value, permits)?),
                "cost" => cost.replace(range(value, permits)?),
                "takes" => takes.replace(range(value, length)?),
                _ => return wrong(format!("unknown word {name:?}")),
            };
            if before.is_some() {
                return wrong(format!("{name} is there twice"));
            }
        }
        let (Some(estimate), Some(cost), Some(takes)) = (estimate, cost, takes) else {
            return wrong("estimate, cost and takes are required".into());
        };
        if estimate.0 == 0 {
            return wrong("an estimate is at least 1".into());
        }
        Ok(Self { estimate, cost, takes })
    }
}

/// `A` or `A..B`.
fn range(text: &str, number: impl Fn(&str) -> Option<u64>) -> Result<(u64, u64), ParseCallsError> {
    let (from, to) = text.split_once("..").unwrap_or((text, text));
    match (number(from), number(to)) {
        (Some(from), Some(to)) if from <= to => Ok((from, to)),
        _ => Err(ParseCallsError(format!("{text:?} is no number or range"))),
    }
}

fn permits(text: &str) -> Option<u64> {
    text.parse().ok().filter(|permits| *permits <= Cost::MAX.get())
}

fn length(text: &str) -> Option<u64> {
    let span = text.parse::<Span>().ok()?.length()?;
    Some(span).filter(|span| *span <= MAX_TAKES).map(Micros::get)
}

impl fmt::Display for CallProfile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let range = |(from, to): (u64, u64), text: &dyn Fn(u64) -> String| match from == to {
            true => text(from),
            false => format!("{}..{}", text(from), text(to)),
        };
        let permits = |permits: u64| permits.to_string();
        let span = |micros: u64| Span::Plain(Micros::new(micros)).to_string();
        let (estimate, cost) = (range(self.estimate, &permits), range(self.cost, &permits));
        write!(f, "estimate {estimate} cost {cost} takes {}", range(self.takes, &span))
    }
}

/// How a gateway spends a budget of which it learns the costs late.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, schemars::JsonSchema))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum BudgetMethod {
    /// Reserves the estimate, and commits the cost at the end.
    Reserve,
    /// Charges the estimate, and refunds or records the difference at the end.
    RefundDifference,
    /// Looks whether anything is left, and charges the cost at the end.
    ChargeAfter,
}

impl BudgetMethod {
    /// All methods, in the order of reports.
    pub const ALL: [Self; 3] = [Self::Reserve, Self::RefundDifference, Self::ChargeAfter];

    /// The name in tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Reserve => "reserve and commit",
            Self::RefundDifference => "refund the difference",
            Self::ChargeAfter => "check before, charge after",
        }
    }
}

/// The calls of one candidate, if budgets are spent by one method.
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, schemars::JsonSchema))]
pub struct MethodReport {
    /// The method.
    pub method: BudgetMethod,
    /// Calls admitted.
    pub admitted: u64,
    /// Calls denied.
    pub denied: u64,
    /// The cost of all admitted calls.
    pub consumed: u64,
    /// For each limit the most that calls of one key cost whose end is in one window; 0 for a
    /// `concurrency` limit.
    pub worst: Vec<u64>,
}
