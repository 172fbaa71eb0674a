//! What is known of one far side that asked to be left alone. Every instant is an argument.

use std::collections::VecDeque;

use tidegate::Micros;

use super::Hint;

/// Stands for a call; a smaller one came earlier.
pub(super) type Ticket = u64;

/// A pause, and how calls begin again after it: first one, then two for each that is answered.
#[derive(Debug)]
pub(super) struct Pause {
    until: Micros,
    hint: Option<Hint>,
    refusals: Refusals,
    /// How many calls may be on their way at once after the end.
    window: usize,
    /// Those on their way since then, each with the instant from which it holds nobody back.
    out: VecDeque<(Ticket, Micros)>,
}

/// Refusals in a row that did not say for how long.
#[derive(Default, Debug)]
struct Refusals {
    count: u32,
    /// When the last of them was counted.
    last: Micros,
}

impl Pause {
    /// A call that is not answered within this span after a pause no longer holds others back.
    pub(super) const PATIENCE: Micros = Micros::from_secs(1);

    /// None yet.
    pub(super) fn none() -> Self {
        let refusals = Refusals::default();
        Self { until: Micros::ZERO, hint: None, refusals, window: 1, out: VecDeque::new() }
    }

    /// Nobody may call before this.
    pub(super) fn until(&self) -> Micros {
        self.until
    }

    /// What asked for it; `None` for refusals without a hint.
    pub(super) fn hint(&self) -> Option<Hint> {
        self.hint
    }

    /// Lets it last until `until`; `false` if it does so already. Pauses are never cut short:
    /// answers overtake each other, and the one that asks for more may come first.
    pub(super) fn lengthen(&mut self, until: Micros, hint: Option<Hint>) -> bool {
        if until <= self.until {
            return false;
        }
        (self.until, self.hint) = (until, hint);
        self.window = 1;
        self.out.clear();
        true
    }

    /// How long to stay away after a refusal without a hint of a call sent at `sent`: 1 s, doubled
    /// with each in a row up to 60 s, and up to a half more by `luck`, so that those who were
    /// refused together do not come back together.
    ///
    /// `None` for a call that was on its way when the last one was counted: a hundred calls refused
    /// at once are one refusal.
    pub(super) fn back_off(&mut self, sent: Micros, now: Micros, luck: u64) -> Option<Micros> {
        let Refusals { count, last } = &mut self.refusals;
        if *count > 0 && sent <= *last {
            return None;
        }
        let seconds = (1 << (*count).min(6)).min(60);
        (*count, *last) = (count.saturating_add(1), now);
        let span = Micros::from_secs(seconds);
        Some(span.saturating_add(Micros::new(luck % (span.get() / 2 + 1))))
    }

    /// A call sent at `sent` was answered well. It says nothing about refusals after it was sent.
    pub(super) fn forgive(&mut self, sent: Micros) {
        if sent > self.refusals.last {
            self.refusals = Refusals::default();
        }
    }

    /// When the next call may go, if nobody is answered before.
    pub(super) fn opens(&mut self, now: Micros) -> Micros {
        // A far side that takes its time is treated like one that has answered.
        while self.out.front().is_some_and(|(_, patience)| *patience <= now) {
            self.out.pop_front();
            self.window = self.window.saturating_add(1);
        }
        let full = self.out.len() >= self.window;
        self.out.front().filter(|_| full).map_or(self.until, |(_, patience)| *patience)
    }

    /// Lets a call go. The pause must be over, and there must be room.
    pub(super) fn enter(&mut self, ticket: Ticket, now: Micros) {
        self.out.push_back((ticket, now.saturating_add(Self::PATIENCE)));
    }

    /// The call is no longer on its way; `false` if it held nobody back.
    pub(super) fn release(&mut self, ticket: Ticket) -> bool {
        let place = self.out.iter().position(|(out, _)| *out == ticket);
        place.is_some_and(|place| self.out.remove(place).is_some())
    }

    /// One more may be on its way than before.
    pub(super) fn widen(&mut self) {
        self.window = self.window.saturating_add(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000;

    fn at(seconds: u64) -> Micros {
        Micros::from_secs(seconds)
    }

    #[test]
    fn the_later_end_counts_whichever_answer_comes_first() {
        let mut pause = Pause::none();
        assert!(pause.lengthen(at(10), Some(Hint::RetryAfter)));
        for earlier in [0, 9, 10] {
            assert!(!pause.lengthen(at(earlier), Some(Hint::RateLimit)), "{earlier}");
        }
        assert_eq!((pause.until(), pause.hint()), (at(10), Some(Hint::RetryAfter)));
        assert!(pause.lengthen(at(11), None));
        assert_eq!((pause.until(), pause.hint()), (at(11), None));
    }

    #[test]
    fn refusals_in_a_row_double_the_wait_up_to_a_minute() {
        let mut pause = Pause::none();
        let mut now = at(100);
        for seconds in [1, 2, 4, 8, 16, 32, 60, 60, 60] {
            let span = pause.back_off(now, now, 0).unwrap();
            assert_eq!(span, at(seconds));
            now = now.saturating_add(span);
        }
    }

    #[test]
    fn luck_only_lengthens_and_by_no_more_than_a_half() {
        for luck in [0, 1, SECOND / 2, SECOND / 2 + 1, 7 * SECOND, u64::MAX] {
            let span = Pause::none().back_off(at(1), at(1), luck).unwrap().get();
            assert!((SECOND..=SECOND * 3 / 2).contains(&span), "{luck}: {span}");
        }
        let longest = Pause::none().back_off(at(1), at(1), SECOND / 2).unwrap();
        assert_eq!(longest.get(), SECOND * 3 / 2);
    }

    #[test]
    fn calls_that_are_refused_together_are_one_refusal() {
        let mut pause = Pause::none();
        assert!(pause.back_off(at(1), at(2), 0).is_some());
        for sent in [0, 1, 2] {
            assert_eq!(pause.back_off(at(sent), at(3), 0), None, "{sent}");
        }
        assert_eq!(pause.back_off(at(3), at(4), 0), Some(at(2)));
    }

    #[test]
    fn only_an_answer_to_a_later_call_forgives() {
        for (sent, next) in [(1, 2), (5, 2), (6, 1)] {
            let mut pause = Pause::none();
            pause.back_off(at(1), at(5), 0);
            pause.forgive(at(sent));
            assert_eq!(pause.back_off(at(7), at(8), 0), Some(at(next)), "{sent}");
        }
    }

    #[test]
    fn after_the_end_one_may_go_and_two_for_each_answer() {
        let mut pause = Pause::none();
        pause.lengthen(at(10), None);
        assert_eq!(pause.opens(at(1)), at(10));
        let mut next = 0;
        for round in [1, 2, 4, 8] {
            let first = next;
            while pause.opens(at(10)) <= at(10) {
                pause.enter(next, at(10));
                next += 1;
            }
            assert_eq!(next - first, round);
            assert_eq!(pause.opens(at(10)), at(11), "and then nobody for a second");
            for ticket in first..next {
                assert!(pause.release(ticket));
                pause.widen();
            }
        }
        assert!(!pause.release(0), "it is back already");
    }

    #[test]
    fn whoever_is_not_answered_in_a_second_holds_nobody_back() {
        let mut pause = Pause::none();
        pause.lengthen(at(10), None);
        pause.enter(0, at(10));
        assert_eq!(pause.opens(at(10)), at(11));
        let last = Micros::new(at(11).get() - 1);
        assert_eq!(pause.opens(last), at(11));
        assert!(pause.opens(at(11)) <= at(11));
        pause.enter(1, at(11));
        assert!(pause.opens(at(11)) <= at(11), "as if it were answered");
        pause.enter(2, at(11));
        assert_eq!(pause.opens(at(11)), at(12));
        assert!(!pause.release(0));
    }

    #[test]
    fn a_new_pause_begins_again_with_one() {
        let mut pause = Pause::none();
        pause.lengthen(at(10), None);
        pause.enter(0, at(10));
        pause.widen();
        pause.lengthen(at(20), None);
        assert!(!pause.release(0), "it belongs to the time before");
        pause.enter(1, at(20));
        assert_eq!(pause.opens(at(20)), at(21));
    }
}
