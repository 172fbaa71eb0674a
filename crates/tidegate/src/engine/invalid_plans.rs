//! Why the plans of a rule are refused.

use std::fmt;

use tidegate_core::Algorithm;

use super::bounds;

/// Why the plans of a rule are refused.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum InvalidPlans {
    /// More plans than [`PlanDraft::MAX_PLANS`](crate::policy::PlanDraft::MAX_PLANS).
    Count(usize),
    /// Not a name.
    Name(Box<str>),
    /// Two plans of one name.
    Duplicate(Box<str>),
    /// The default is not one of the plans.
    Default(Box<str>),
    /// The rule has limits beside its plans.
    LimitsToo,
    /// Limits of other algorithms than the default plan's, or in another order.
    Algorithms {
        /// The plan.
        plan: Box<str>,
        /// Its algorithms.
        given: Vec<Algorithm>,
        /// The default plan.
        default: Box<str>,
        /// The algorithms of the default plan.
        expected: Vec<Algorithm>,
    },
}

impl fmt::Display for InvalidPlans {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Count(count) => write!(f, "{count} plans; use at most {}", bounds::MAX_PLANS),
            Self::Name(name) => write!(
                f,
                "plan name {name:?}; use 1 to 64 of A-Z a-z 0-9 _ - with a letter or digit first"
            ),
            Self::Duplicate(name) => write!(f, "two plans named {name:?}; rename one"),
            Self::Default(name) if name.is_empty() => f.write_str(
                "default_plan is required with plans: the plan of requests that name none",
            ),
            Self::Default(name) => {
                write!(f, "the default plan {name:?} is not in plans; add it, or name another")
            }
            Self::LimitsToo => {
                f.write_str("limits and plans exclude each other; move the limits into a plan")
            }
            Self::Algorithms { plan, given, default, expected } => write!(
                f,
                "plan {plan:?} has {}, but plan {default:?} has {}; use the same algorithms in the \
                 same order, so that a key that changes its plan keeps what was used",
                named(given),
                named(expected)
            ),
        }
    }
}

impl std::error::Error for InvalidPlans {}

fn named(algorithms: &[Algorithm]) -> String {
    if algorithms.is_empty() {
        return "no limits".into();
    }
    algorithms.iter().map(|algorithm| algorithm.name()).collect::<Vec<_>>().join(", ")
}
