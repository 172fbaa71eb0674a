//! What became of the calls of about the last second.

use tidegate_core::Micros;

/// Two counts of half a second each, the present one and the one before; and the failures since somebody
/// was answered.
#[derive(Default, Debug)]
pub(super) struct Tally {
    /// The number of the present half second.
    half: u64,
    present: Count,
    before: Count,
    /// Failures in a row, and when the first of them was.
    run: u32,
    run_since: Micros,
}

#[derive(Clone, Copy, Default, Debug)]
struct Count {
    answered: u32,
    failed: u32,
}

impl Tally {
    /// Half of the time that is looked at.
    const HALF: Micros = Micros::from_millis(500);
    /// Fewer failures say nothing: one slow command in the store makes a few callers wait together.
    pub(super) const FEWEST_FAILURES: u32 = 5;
    /// If nobody was answered for so long, it does not matter how many were answered before. Ten times the
    /// usual deadline, and so less than a pause that is worth mentioning in any other service.
    pub(super) const SILENCE: Micros = Micros::from_millis(250);

    pub(super) fn note(&mut self, now: Micros, answered: bool) {
        let half = now.get() / Self::HALF.get();
        // Two threads may come in another order than they read the time in.
        if half > self.half {
            let follows = half == self.half + 1;
            self.before = if follows { self.present } else { Count::default() };
            self.present = Count::default();
            self.half = half;
        }
        if answered {
            self.present.answered = self.present.answered.saturating_add(1);
            self.run = 0;
        } else {
            self.present.failed = self.present.failed.saturating_add(1);
            self.run_since = if self.run == 0 { now } else { self.run_since };
            self.run = self.run.saturating_add(1);
        }
    }

    /// Are these failures enough to leave the store alone?
    pub(super) fn is_enough(&self, now: Micros) -> bool {
        let failed = self.present.failed.saturating_add(self.before.failed);
        let answered = self.present.answered.saturating_add(self.before.answered);
        let mostly = failed >= Self::FEWEST_FAILURES && failed >= answered;
        let silent = self.run >= Self::FEWEST_FAILURES
            && now.saturating_sub(self.run_since) >= Self::SILENCE;
        mostly || silent
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether it is enough after each of these: at so many milliseconds, so many are answered or fail.
    #[test]
    fn half_of_the_calls_of_a_second_or_a_quarter_of_a_second_of_silence_is_enough() {
        type Steps<'a> = &'a [(u64, u32, u32, bool)];
        let cases: [(&str, Steps<'_>); 8] = [
            ("nothing but failures", &[(0, 0, 4, false), (1, 0, 1, true)]),
            ("half of them", &[(0, 50, 0, false), (100, 0, 49, false), (101, 0, 1, true)]),
            ("fewer than half", &[(0, 1_000, 0, false), (100, 0, 900, false), (120, 1, 90, false)]),
            (
                "few, and nobody answered",
                &[(0, 0, 1, false), (600, 0, 1, false), (1_700, 0, 1, false)],
            ),
            ("silence", &[(0, 9_999, 1, false), (249, 0, 8, false), (250, 0, 1, true)]),
            ("not silence", &[(0, 9_999, 1, false), (200, 1, 8, false), (300, 0, 9, false)]),
            (
                "one a second",
                &[
                    (0, 0, 1, false),
                    (1_000, 0, 1, false),
                    (2_000, 0, 1, false),
                    (3_000, 0, 1, false),
                    (4_000, 0, 1, true),
                ],
            ),
            ("long ago", &[(0, 0, 4, false), (1_000, 1, 4, false), (1_001, 4, 0, false)]),
        ];
        for (what, steps) in cases {
            let mut tally = Tally::default();
            for (ms, answered, failed, enough) in steps {
                let now = Micros::from_secs(10).saturating_add(Micros::from_millis(*ms));
                (0..*answered).for_each(|_| tally.note(now, true));
                (0..*failed).for_each(|_| tally.note(now, false));
                assert_eq!(tally.is_enough(now), *enough, "{what} at {ms} ms");
            }
        }
    }
}
