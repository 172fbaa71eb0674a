//! What is tried, as an address says it.

use tidegate::simulate::{Candidate, ParseCandidateError, Traffic};
use tidegate::{Micros, Span};

use super::super::form::Fields;
use crate::http::Task;
use crate::http::problem::Problem;

/// What somebody has typed.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub(super) struct Trial {
    /// In their places; an empty one is left out.
    pub(super) limits: Vec<String>,
    pub(super) traffic: String,
    pub(super) seed: String,
    pub(super) hold: String,
}

/// A field of the form.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Field {
    /// The limit at this place.
    Limit(usize),
    Traffic,
    Seed,
    Hold,
}

impl Field {
    /// All of them.
    pub(super) const ALL: [Self; Trial::MOST_LIMITS + 3] = [
        Self::Limit(0),
        Self::Limit(1),
        Self::Limit(2),
        Self::Limit(3),
        Self::Traffic,
        Self::Hold,
        Self::Seed,
    ];

    /// The id of its place on the page.
    pub(super) fn id(self) -> String {
        match self {
            Self::Limit(place) => format!("limit-{}", place + 1),
            Self::Traffic => "traffic".into(),
            Self::Seed => "seed".into(),
            Self::Hold => "hold".into(),
        }
    }
}

/// What is wrong with a field.
#[derive(Clone, Debug)]
pub(super) struct Fault {
    pub(super) field: Field,
    pub(super) message: String,
    /// The text with carets under what is wrong.
    pub(super) underlined: Option<String>,
    /// The whole trial with what was probably meant.
    pub(super) instead: Option<(String, Trial)>,
}

pub(super) type Faults = Vec<Fault>;

impl Trial {
    /// How many limits are tried at a time.
    pub(super) const MOST_LIMITS: usize = 4;

    /// What an address says; the first of the presets if it says nothing.
    pub(super) fn read(fields: &Fields) -> Self {
        let text = |name: &str| fields.text(name).trim().to_string();
        let limits: Vec<String> = fields.all("limit").map(|limit| limit.trim().into()).collect();
        let trial =
            Self { limits, traffic: text("traffic"), seed: text("seed"), hold: text("hold") };
        if trial.traffic.is_empty() && trial.limits.iter().all(String::is_empty) {
            return super::first();
        }
        trial
    }

    /// The address that leads here again.
    pub(super) fn link(&self) -> String {
        let mut query = form_urlencoded::Serializer::new(String::new());
        for limit in self.limits.iter().filter(|limit| !limit.is_empty()) {
            query.append_pair("limit", limit);
        }
        for (name, value) in
            [("traffic", &self.traffic), ("seed", &self.seed), ("hold", &self.hold)]
        {
            if !value.is_empty() {
                query.append_pair(name, value);
            }
        }
        format!("/playground?{}", query.finish())
    }

    /// What there is to do, or all that is wrong with it.
    pub(super) fn task(&self) -> Result<Task, Faults> {
        let mut faults = Faults::new();
        let candidates = self.candidates(&mut faults);
        let seed = self.seed(&mut faults);
        let hold = self.hold(&mut faults);
        let traffic = self.traffic(&mut faults);
        match traffic {
            Some(traffic) if faults.is_empty() => Task::new(candidates, traffic, seed, hold)
                .map_err(|problem| vec![self.fault(&problem)]),
            _ => Err(faults),
        }
    }

    /// What is wrong with what could be read.
    pub(super) fn fault(&self, problem: &Problem) -> Fault {
        let field = match problem.wrong_field() {
            Some("hold_ms") => Field::Hold,
            Some("limits") => Field::Limit(0),
            _ => Field::Traffic,
        };
        let message = match field {
            Field::Hold if self.hold.is_empty() => {
                "holders of a concurrency limit stay for a while; say how long, like 200ms".into()
            }
            Field::Hold => "use 1us to 1d".into(),
            _ => problem.clone().told().1,
        };
        Fault::new(field, message)
    }

    fn candidates(&self, faults: &mut Faults) -> Vec<Candidate> {
        let mut candidates = Vec::new();
        for (place, text) in self.limits.iter().enumerate().filter(|(_, text)| !text.is_empty()) {
            if place >= Self::MOST_LIMITS {
                let message = format!("at most {} limits are tried at a time", Self::MOST_LIMITS);
                faults.push(Fault::new(Field::Limit(Self::MOST_LIMITS - 1), message));
                break;
            }
            match text.parse::<Candidate>() {
                Ok(candidate) => candidates.push(candidate),
                Err(error) => faults.push(self.limit_fault(place, text, &error)),
            }
        }
        if self.limits.iter().all(String::is_empty) {
            faults.push(Fault::new(Field::Limit(0), "write a limit, like 10/s burst 20"));
        }
        candidates
    }

    fn limit_fault(&self, place: usize, text: &str, error: &ParseCandidateError) -> Fault {
        let mut fault = Fault::new(Field::Limit(place), error.to_string());
        fault.underlined = Some(error.underline(text));
        if let ParseCandidateError::Limit { start, error } = error
            && let Some(better) = error.suggestion()
        {
            // The one at fault is replaced, the others stay.
            let (before, rest) = text.split_at(*start);
            let after = rest.find(" + ").and_then(|end| rest.get(end..)).unwrap_or_default();
            let better = format!("{before}{better}{after}");
            let mut instead = self.clone();
            if let Some(limit) = instead.limits.get_mut(place) {
                limit.clone_from(&better);
            }
            fault.instead = Some((better, instead));
        }
        fault
    }

    fn traffic(&self, faults: &mut Faults) -> Option<Traffic> {
        match self.traffic.parse::<Traffic>() {
            Ok(traffic) => Some(traffic),
            Err(error) => {
                let mut fault = Fault::new(Field::Traffic, error.to_string());
                fault.underlined = Some(error.underline(&self.traffic));
                fault.instead = error.suggestion().map(|better| {
                    (better.to_string(), Self { traffic: better.into(), ..self.clone() })
                });
                faults.push(fault);
                None
            }
        }
    }

    fn seed(&self, faults: &mut Faults) -> u64 {
        if self.seed.is_empty() {
            return 1;
        }
        self.seed.parse().unwrap_or_else(|_| {
            faults.push(Fault::new(Field::Seed, "write a whole number, like 7"));
            1
        })
    }

    fn hold(&self, faults: &mut Faults) -> Option<Micros> {
        if self.hold.is_empty() {
            return None;
        }
        let read = self.hold.parse::<Span>().map_err(|error| error.to_string());
        let hold = read.and_then(|span| span.length().ok_or("use 1us to 1d".into()));
        hold.map_err(|message| faults.push(Fault::new(Field::Hold, message))).ok()
    }
}

impl Fault {
    fn new(field: Field, message: impl Into<String>) -> Self {
        Self { field, message: message.into(), underlined: None, instead: None }
    }
}
