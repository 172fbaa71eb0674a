//! Imagined traffic: who comes when, as a person would say it.

use std::fmt;

use tidegate_core::{Micros, Span};

use super::error::InvalidTraffic;

/// What is offered: one or several parts at the same time.
///
/// ```text
/// part    = pattern { option }                     parts are joined with " + "
/// pattern = steady RATE | poisson RATE | burst N every SPAN | ramp RATE to RATE
/// option  = keys N [zipf S] | after SPAN | for SPAN         each once, any order
/// ```
///
/// Rates and spans are written as in limits: `120/s`, `10m`. A part without `for` lasts until the others have
/// ended, or a minute. Keys are numbered, and parts share them; which key a request has is left to chance, evenly or,
/// with `zipf S`, the k-th `1/k^S` as often as the first. `after` lets a part begin later.
///
/// ```
/// use tidegate::simulate::Traffic;
/// let traffic: Traffic = "steady 60/60s for 3600s + burst 500 every 10s for 5m".parse()?;
/// assert_eq!(traffic.to_string(), "steady 60/m for 1h + burst 500 every 10s for 5m");
/// assert_eq!(traffic.requests(), 3_600 / 60 * 60 + 30 * 500);
/// # Ok::<(), tidegate::simulate::ParseTrafficError>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Traffic {
    parts: Vec<Part>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Part {
    pub(super) pattern: Pattern,
    pub(super) keys: u32,
    /// In thousandths.
    pub(super) zipf: Option<u32>,
    pub(super) after: Micros,
    pub(super) lasts: Micros,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Pattern {
    Steady(Rate),
    Poisson(Rate),
    Burst { count: u64, every: Micros },
    Ramp { from: Rate, to: Rate },
}

/// So many per span.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Rate {
    pub(super) count: u64,
    pub(super) per: Micros,
}

impl Traffic {
    /// The most requests in all parts together; what is left to chance may exceed it by a little.
    pub const MAX_REQUESTS: u64 = 10_000_000;
    /// The most keys.
    pub const MAX_KEYS: u32 = 100_000;
    /// The longest time, 200 days.
    pub const MAX_SPAN: Micros = Micros::from_secs(200 * 86_400);
    /// The most parts.
    pub const MAX_PARTS: usize = 16;
    /// How long a part lasts if none says how long.
    pub(super) const DEFAULT_SPAN: Micros = Micros::from_secs(60);

    /// The parts together, or what is too much; the number is that of the part at fault.
    pub(super) fn of(parts: Vec<Part>) -> Result<Self, (usize, InvalidTraffic)> {
        let mut requests = 0_u64;
        for (place, part) in parts.iter().enumerate() {
            part.check().map_err(|invalid| (place, invalid))?;
            requests = requests.saturating_add(part.requests());
            if requests > Self::MAX_REQUESTS {
                return Err((place, InvalidTraffic::Requests(requests)));
            }
        }
        if parts.len() > Self::MAX_PARTS {
            return Err((Self::MAX_PARTS, InvalidTraffic::Parts(parts.len())));
        }
        Ok(Self { parts })
    }

    pub(super) fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// How many requests it offers; where chance decides, how many are to be expected.
    pub fn requests(&self) -> u64 {
        self.parts.iter().map(Part::requests).sum()
    }

    /// How long it lasts.
    pub fn span(&self) -> Micros {
        self.parts.iter().map(Part::end).max().unwrap_or(Micros::ZERO)
    }

    /// How many keys it has at most.
    pub fn keys(&self) -> u32 {
        self.parts.iter().map(|part| part.keys).max().unwrap_or(1)
    }
}

impl Part {
    pub(super) fn end(&self) -> Micros {
        self.after.saturating_add(self.lasts)
    }

    fn check(&self) -> Result<(), InvalidTraffic> {
        if self.keys == 0 || self.keys > Traffic::MAX_KEYS {
            return Err(InvalidTraffic::Keys(self.keys));
        }
        if self.end() > Traffic::MAX_SPAN {
            return Err(InvalidTraffic::Span(self.end()));
        }
        if self.lasts == Micros::ZERO {
            return Err(InvalidTraffic::Late);
        }
        Ok(())
    }

    fn requests(&self) -> u64 {
        match self.pattern {
            Pattern::Steady(rate) | Pattern::Poisson(rate) => rate.over(self.lasts),
            Pattern::Burst { count, every } => {
                count.saturating_mul(self.lasts.get().div_ceil(every.get().max(1)))
            }
            Pattern::Ramp { from, to } => {
                let sum = u128::from(from.over(self.lasts)) + u128::from(to.over(self.lasts));
                u64::try_from(sum.div_ceil(2)).unwrap_or(u64::MAX)
            }
        }
    }
}

impl Rate {
    /// How many come in `span`, rounded up.
    pub(super) fn over(self, span: Micros) -> u64 {
        let product = u128::from(self.count) * u128::from(span.get());
        u64::try_from(product.div_ceil(u128::from(self.per.get().max(1)))).unwrap_or(u64::MAX)
    }
}

/// The canonical notation.
impl fmt::Display for Traffic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, part) in self.parts.iter().enumerate() {
            f.write_str(if place == 0 { "" } else { " + " })?;
            part.fmt(f)?;
        }
        Ok(())
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.pattern {
            Pattern::Steady(rate) => write!(f, "steady {rate}")?,
            Pattern::Poisson(rate) => write!(f, "poisson {rate}")?,
            Pattern::Burst { count, every } => {
                write!(f, "burst {count} every {}", Span::Plain(every))?
            }
            Pattern::Ramp { from, to } => write!(f, "ramp {from} to {to}")?,
        }
        if self.keys != 1 || self.zipf.is_some() {
            write!(f, " keys {}", self.keys)?;
        }
        if let Some(exponent) = self.zipf {
            let decimals = format!("{:03}", exponent % 1_000);
            let decimals = decimals.trim_end_matches('0');
            let point = if decimals.is_empty() { "" } else { "." };
            write!(f, " zipf {}{point}{decimals}", exponent / 1_000)?;
        }
        if self.after > Micros::ZERO {
            write!(f, " after {}", Span::Plain(self.after))?;
        }
        write!(f, " for {}", Span::Plain(self.lasts))
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let span = Span::Plain(self.per).to_string();
        // Behind a slash, one second is `s`.
        let brief = span.strip_prefix('1').filter(|unit| unit.starts_with(char::is_alphabetic));
        write!(f, "{}/{}", self.count, brief.unwrap_or(&span))
    }
}
