//! Traffic: patterns of requests, and their notation.

use std::fmt;

use tidegate_core::{Micros, Span};

use super::bounds;
use super::error::InvalidTraffic;

/// Offered requests: one or several parts at the same time.
///
/// ```text
/// part    = pattern { option }                     parts are joined with " + "
/// pattern = steady RATE | poisson RATE | burst N every SPAN | ramp RATE to RATE
/// option  = keys N [zipf S] | after SPAN | for SPAN         each once, any order
/// ```
///
/// Rates and spans are written as in limits: `120/s`, `10m`. A part without `for` lasts until the
/// others have ended, or a minute. Keys are numbered, and parts share them. The key of a request is
/// random, uniform or, with `zipf S`, the k-th `1/k^S` as often as the first. `after` delays the
/// start of a part.
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
    parts: Vec<TrafficPart>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct TrafficPart {
    pub(super) pattern: ArrivalPattern,
    pub(super) keys: u32,
    /// Zipf exponent in thousandths.
    pub(super) zipf: Option<u32>,
    pub(super) after: Micros,
    pub(super) lasts: Micros,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ArrivalPattern {
    Steady(ArrivalRate),
    Poisson(ArrivalRate),
    Burst { count: u64, every: Micros },
    Ramp { from: ArrivalRate, to: ArrivalRate },
}

/// A number of requests per span.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct ArrivalRate {
    pub(super) count: u64,
    pub(super) per: Micros,
}

impl Traffic {
    /// Largest number of requests of all parts together; random patterns may exceed it slightly.
    pub const MAX_REQUESTS: u64 = bounds::MAX_REQUESTS;
    /// Largest number of keys.
    pub const MAX_KEYS: u32 = bounds::MAX_KEYS;
    /// Longest duration, 200 days.
    pub const MAX_SPAN: Micros = bounds::MAX_SPAN;
    /// Largest number of parts.
    pub const MAX_PARTS: usize = bounds::MAX_PARTS;
    /// Duration if no part has one.
    pub(super) const DEFAULT_SPAN: Micros = Micros::from_secs(60);

    /// The traffic of these parts, or the violated bound and the index of the part.
    pub(super) fn of(parts: Vec<TrafficPart>) -> Result<Self, (usize, InvalidTraffic)> {
        let mut requests = 0_u64;
        for (index, part) in parts.iter().enumerate() {
            part.check().map_err(|invalid| (index, invalid))?;
            requests = requests.saturating_add(part.requests());
            if requests > Self::MAX_REQUESTS {
                return Err((index, InvalidTraffic::Requests(requests)));
            }
        }
        if parts.len() > Self::MAX_PARTS {
            return Err((Self::MAX_PARTS, InvalidTraffic::Parts(parts.len())));
        }
        Ok(Self { parts })
    }

    pub(super) fn parts(&self) -> &[TrafficPart] {
        &self.parts
    }

    /// Number of requests; the expected number for random patterns.
    pub fn requests(&self) -> u64 {
        self.parts.iter().map(TrafficPart::requests).sum()
    }

    /// Duration of the traffic.
    pub fn span(&self) -> Micros {
        self.parts.iter().map(TrafficPart::end).max().unwrap_or(Micros::ZERO)
    }

    /// Largest number of keys of a part.
    pub fn keys(&self) -> u32 {
        self.parts.iter().map(|part| part.keys).max().unwrap_or(1)
    }
}

impl TrafficPart {
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
            ArrivalPattern::Steady(rate) | ArrivalPattern::Poisson(rate) => rate.over(self.lasts),
            ArrivalPattern::Burst { count, every } => {
                count.saturating_mul(self.lasts.get().div_ceil(every.get().max(1)))
            }
            ArrivalPattern::Ramp { from, to } => {
                let sum = u128::from(from.over(self.lasts)) + u128::from(to.over(self.lasts));
                u64::try_from(sum.div_ceil(2)).unwrap_or(u64::MAX)
            }
        }
    }
}

impl ArrivalRate {
    /// Requests in `span`, rounded up.
    pub(super) fn over(self, span: Micros) -> u64 {
        let product = u128::from(self.count) * u128::from(span.get());
        u64::try_from(product.div_ceil(u128::from(self.per.get().max(1)))).unwrap_or(u64::MAX)
    }
}

/// The canonical notation.
impl fmt::Display for Traffic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, part) in self.parts.iter().enumerate() {
            f.write_str(if index == 0 { "" } else { " + " })?;
            part.fmt(f)?;
        }
        Ok(())
    }
}

impl fmt::Display for TrafficPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.pattern {
            ArrivalPattern::Steady(rate) => write!(f, "steady {rate}")?,
            ArrivalPattern::Poisson(rate) => write!(f, "poisson {rate}")?,
            ArrivalPattern::Burst { count, every } => {
                write!(f, "burst {count} every {}", Span::Plain(every))?
            }
            ArrivalPattern::Ramp { from, to } => write!(f, "ramp {from} to {to}")?,
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

impl fmt::Display for ArrivalRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let span = Span::Plain(self.per).to_string();
        // After a slash, one second is `s`.
        let brief = span.strip_prefix('1').filter(|unit| unit.starts_with(char::is_alphabetic));
        write!(f, "{}/{}", self.count, brief.unwrap_or(&span))
    }
}
