//! The input of a simulation, from the query string.

use tidegate::simulate::{CallProfile, Candidate, ParseCandidateError, Traffic};
use tidegate::{Micros, Span};

use super::super::form::FormFields;
use crate::transport::http::handlers::simulate::SimulationJob;
use crate::transport::http::problem::HttpProblem;

/// The values of the form.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub(super) struct PlaygroundInput {
    /// In the order of the fields; empty ones are ignored.
    pub(super) limits: Vec<String>,
    pub(super) traffic: String,
    pub(super) seed: String,
    pub(super) hold: String,
    pub(super) calls: String,
}

/// A field of the form.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum InputField {
    /// The field for the limit with this index.
    Limit(usize),
    Traffic,
    Seed,
    Hold,
    Calls,
}

impl InputField {
    pub(super) const ALL: [Self; PlaygroundInput::MAX_LIMITS + 4] = [
        Self::Limit(0),
        Self::Limit(1),
        Self::Limit(2),
        Self::Limit(3),
        Self::Traffic,
        Self::Hold,
        Self::Seed,
        Self::Calls,
    ];

    /// The id of its element.
    pub(super) fn id(self) -> String {
        match self {
            Self::Limit(index) => format!("limit-{}", index + 1),
            Self::Traffic => "traffic".into(),
            Self::Seed => "seed".into(),
            Self::Hold => "hold".into(),
            Self::Calls => "calls".into(),
        }
    }
}

/// An error in a field.
#[derive(Clone, Debug)]
pub(super) struct InputError {
    pub(super) field: InputField,
    pub(super) message: String,
    /// The text with carets under the error.
    pub(super) underlined: Option<String>,
    /// A suggested text for the field, and the whole input with it.
    pub(super) suggestion: Option<(String, PlaygroundInput)>,
}

pub(super) type InputErrors = Vec<InputError>;

impl PlaygroundInput {
    /// Upper bound of the limits.
    pub(super) const MAX_LIMITS: usize = 4;

    /// The input in a query string.
    pub(super) fn read(fields: &FormFields) -> Self {
        let text = |name: &str| fields.text(name).trim().to_string();
        let limits: Vec<String> = fields.all("limit").map(|limit| limit.trim().into()).collect();
        let (traffic, seed, hold) = (text("traffic"), text("seed"), text("hold"));
        Self { limits, traffic, seed, hold, calls: text("calls") }
    }

    /// Whether it has neither a limit nor traffic.
    pub(super) fn is_empty(&self) -> bool {
        self.traffic.is_empty() && self.limits.iter().all(String::is_empty)
    }

    /// The link that reproduces the page.
    pub(super) fn link(&self) -> String {
        let mut query = form_urlencoded::Serializer::new(String::new());
        for limit in self.limits.iter().filter(|limit| !limit.is_empty()) {
            query.append_pair("limit", limit);
        }
        for (name, value) in [
            ("traffic", &self.traffic),
            ("seed", &self.seed),
            ("hold", &self.hold),
            ("calls", &self.calls),
        ] {
            if !value.is_empty() {
                query.append_pair(name, value);
            }
        }
        format!("/playground?{}", query.finish())
    }

    /// The simulation, or all errors of the input.
    pub(super) fn task(&self) -> Result<SimulationJob, InputErrors> {
        let mut errors = InputErrors::new();
        let candidates = self.candidates(&mut errors);
        let seed = self.seed(&mut errors);
        let hold = self.hold(&mut errors);
        let calls = self.calls(&mut errors);
        let traffic = self.traffic(&mut errors);
        match traffic {
            Some(traffic) if errors.is_empty() => {
                SimulationJob::new(candidates, traffic, seed, hold, calls)
                    .map_err(|problem| vec![self.problem_error(&problem)])
            }
            _ => Err(errors),
        }
    }

    /// The error of an input that was parsed and refused by the simulation.
    pub(super) fn problem_error(&self, problem: &HttpProblem) -> InputError {
        let field = match problem.wrong_field() {
            Some("hold_ms") => InputField::Hold,
            Some("limits") => InputField::Limit(0),
            _ => InputField::Traffic,
        };
        let message = match field {
            InputField::Hold if self.hold.is_empty() => {
                "a concurrency limit needs a hold time, for example 200ms".into()
            }
            InputField::Hold => "use 1us to 1d".into(),
            _ => problem.clone().into_parts().1,
        };
        InputError::new(field, message)
    }

    fn candidates(&self, errors: &mut InputErrors) -> Vec<Candidate> {
        let mut candidates = Vec::new();
        for (index, text) in self.limits.iter().enumerate().filter(|(_, text)| !text.is_empty()) {
            if index >= Self::MAX_LIMITS {
                let message = format!("at most {} limits", Self::MAX_LIMITS);
                errors.push(InputError::new(InputField::Limit(Self::MAX_LIMITS - 1), message));
                break;
            }
            match text.parse::<Candidate>() {
                Ok(candidate) => candidates.push(candidate),
                Err(error) => errors.push(self.limit_error(index, text, &error)),
            }
        }
        if self.limits.iter().all(String::is_empty) {
            errors.push(InputError::new(
                InputField::Limit(0),
                "expected a limit, for example 10/s burst 20",
            ));
        }
        candidates
    }

    fn limit_error(&self, index: usize, text: &str, error: &ParseCandidateError) -> InputError {
        let mut fault = InputError::new(InputField::Limit(index), error.to_string());
        fault.underlined = Some(error.underline(text));
        if let ParseCandidateError::Limit { start, error } = error
            && let Some(better) = error.suggestion()
        {
            // Only the invalid limit is replaced.
            let (before, rest) = text.split_at(*start);
            let after = rest.find(" + ").and_then(|end| rest.get(end..)).unwrap_or_default();
            let better = format!("{before}{better}{after}");
            let mut input = self.clone();
            if let Some(limit) = input.limits.get_mut(index) {
                limit.clone_from(&better);
            }
            fault.suggestion = Some((better, input));
        }
        fault
    }

    fn traffic(&self, errors: &mut InputErrors) -> Option<Traffic> {
        match self.traffic.parse::<Traffic>() {
            Ok(traffic) => Some(traffic),
            Err(error) => {
                let mut fault = InputError::new(InputField::Traffic, error.to_string());
                fault.underlined = Some(error.underline(&self.traffic));
                fault.suggestion = error.suggestion().map(|better| {
                    (better.to_string(), Self { traffic: better.into(), ..self.clone() })
                });
                errors.push(fault);
                None
            }
        }
    }

    fn seed(&self, errors: &mut InputErrors) -> u64 {
        if self.seed.is_empty() {
            return 1;
        }
        self.seed.parse().unwrap_or_else(|_| {
            errors
                .push(InputError::new(InputField::Seed, "expected a whole number, for example 7"));
            1
        })
    }

    fn calls(&self, errors: &mut InputErrors) -> Option<CallProfile> {
        if self.calls.is_empty() {
            return None;
        }
        let read = self.calls.parse::<CallProfile>();
        read.map_err(|error| errors.push(InputError::new(InputField::Calls, error.to_string())))
            .ok()
    }

    fn hold(&self, errors: &mut InputErrors) -> Option<Micros> {
        if self.hold.is_empty() {
            return None;
        }
        let read = self.hold.parse::<Span>().map_err(|error| error.to_string());
        let hold = read.and_then(|span| span.length().ok_or("use 1us to 1d".into()));
        hold.map_err(|message| errors.push(InputError::new(InputField::Hold, message))).ok()
    }
}

impl InputError {
    fn new(field: InputField, message: impl Into<String>) -> Self {
        Self { field, message: message.into(), underlined: None, suggestion: None }
    }
}
