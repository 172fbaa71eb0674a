//! Lines whose time jumps ahead.

use tidegate::Micros;

/// A line more than a day ahead of all lines before it, or the first line. It is held back until
/// the next line confirms its time. A wrong time would set the clock ahead, and all lines up to it
/// would count at the same instant.
pub(crate) struct TimeJump {
    pub(crate) number: u64,
    pub(crate) line: Vec<u8>,
    pub(crate) at: Option<Micros>,
}

impl TimeJump {
    /// Lines further ahead than this are held back.
    pub(crate) const LENGTH: Micros = Micros::from_secs(86_400);
    pub(crate) const WHY: &'static str = "time is more than a day ahead of the next line";

    /// Whether the next line is later, or at most a day earlier.
    pub(crate) fn is_confirmed_by(&self, next: &Self) -> bool {
        let [at, next] = [self.at, next.at].map(|at| at.unwrap_or(Micros::ZERO));
        at <= next.saturating_add(Self::LENGTH)
    }
}
