//! Times that cannot be believed.

use tidegate::Micros;

/// A line that is a day or more ahead of all before it, or the first. The next one tells whether time has passed, or the
/// line is wrong: were it believed, everything up to its time would count as of one instant.
pub(super) struct Leap {
    pub(super) number: u64,
    pub(super) line: Vec<u8>,
    pub(super) at: Option<Micros>,
}

impl Leap {
    /// How far ahead that is.
    pub(super) const LENGTH: Micros = Micros::from_secs(86_400);
    pub(super) const WHY: &'static str = "its time is more than a day ahead of the next line's";

    /// Does the next line come after it, or not much before?
    pub(super) fn is_borne_out_by(&self, next: &Self) -> bool {
        let [at, next] = [self.at, next.at].map(|at| at.unwrap_or(Micros::ZERO));
        at <= next.saturating_add(Self::LENGTH)
    }
}
