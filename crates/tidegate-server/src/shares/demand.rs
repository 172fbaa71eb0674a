//! How much a holder asks for.

use tidegate::Micros;

/// Requests of a holder, whether they were admitted or not, as a rate.
#[derive(Clone, Default, Debug)]
pub(crate) struct RequestDemand {
    count: u64,
    span: Micros,
    estimate: Option<DemandRate>,
}

/// Requests in a time.
#[derive(Clone, Copy, Debug)]
struct DemandRate {
    count: u64,
    span: Micros,
}

impl DemandRate {
    /// Requests in `span` at this rate, rounded up.
    fn in_span(self, span: Micros) -> u64 {
        let product = u128::from(self.count) * u128::from(span.get());
        u64::try_from(product.div_ceil(u128::from(self.span.get().max(1)))).unwrap_or(u64::MAX)
    }
}

impl RequestDemand {
    /// Requests that an estimate is made of.
    const ENOUGH: u64 = 16;
    /// After so long, fewer requests are enough.
    const PATIENCE: Micros = Micros::from_secs(60);

    /// Adds what was requested in the last `span`.
    pub(crate) fn add(&mut self, count: u64, span: Micros) {
        self.count = self.count.saturating_add(count);
        self.span = self.span.saturating_add(span);
        if self.span == Micros::ZERO {
            return;
        }
        let expected = self.estimate.map_or(0, |estimate| estimate.in_span(self.span));
        let has_dropped = expected >= Self::ENOUGH && self.count < expected / 2;
        if self.count >= Self::ENOUGH || has_dropped || self.span >= Self::PATIENCE {
            self.estimate = Some(DemandRate { count: self.count, span: self.span });
            (self.count, self.span) = (0, Micros::ZERO);
        }
    }

    /// Requests in `span`; `None` while too few are known.
    pub(crate) fn in_span(&self, span: Micros) -> Option<u64> {
        self.estimate.map(|estimate| estimate.in_span(span))
    }
}
