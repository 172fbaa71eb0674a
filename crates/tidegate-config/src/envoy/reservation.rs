//! What a reserve (`tidegate.reserve`) does with the limit of a descriptor.

use std::ops::RangeInclusive;
use std::time::Duration;

use tidegate::{Cost, Expiry, InvalidRule, Limit, Span};

use super::diagnostics::Diagnostics;
use super::fields::LocatedFields;

/// How permits of a limit are held between a reserve and its commit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EnvoyReservation {
    /// Held by a reserve that names no number.
    pub estimate: Cost,
    /// For how long without a commit.
    pub ttl: Duration,
    /// What happens to the permits after that, or if the commit names no number.
    pub on_expiry: Expiry,
}

/// The usage is unknown, not zero: so it is charged.
impl Default for EnvoyReservation {
    fn default() -> Self {
        let ttl = Duration::from_secs(600);
        Self { estimate: Cost::ONE, ttl, on_expiry: Expiry::Charge }
    }
}

impl EnvoyReservation {
    /// The settings of a descriptor with these limits, with errors in `diagnostics`.
    pub(crate) fn read(
        fields: &LocatedFields<'_>,
        limits: &[Limit],
        diagnostics: &mut Diagnostics,
    ) -> Self {
        const TTLS: RangeInclusive<Duration> = Duration::from_millis(1)..=Duration::from_secs(3600);
        let mut error = |field: &str, message: String| {
            let span = fields.value_span(field).unwrap_or(fields.start);
            diagnostics.error(span, &fields.path(field), message);
        };
        let mut settings = Self::default();
        if let Some(given) = fields.values.estimate.map(u64::from) {
            let capacity = limits.iter().map(Limit::capacity).min().unwrap_or(0);
            match Cost::new(given) {
                Ok(cost) if (1..=capacity).contains(&given) => settings.estimate = cost,
                _ => error("estimate", InvalidRule::Estimate { given, capacity }.to_string()),
            }
        }
        if let Some(text) = &fields.values.reservation_ttl {
            let length = text.parse::<Span>().map(|span| span.length().map(Duration::from));
            match length {
                Ok(Some(ttl)) if TTLS.contains(&ttl) => settings.ttl = ttl,
                Ok(_) => {
                    error("reservation_ttl", "out of range; use 1ms to 1h, for example 10m".into());
                }
                Err(invalid) => error("reservation_ttl", invalid.to_string()),
            }
        }
        if let Some(on_expiry) = fields.values.on_expiry {
            settings.on_expiry = on_expiry.into();
        }
        settings
    }
}
