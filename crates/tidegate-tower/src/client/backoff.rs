//! Pause and ramp-up of one upstream. Time is always an argument.

use std::collections::VecDeque;

use tidegate::Micros;

use super::Hint;

/// Numbers calls in the order of arrival.
pub(super) type CallNumber = u64;

/// A pause and the ramp-up after it: first one call, then two more for each served one.
#[derive(Debug)]
pub(super) struct Backoff {
    until: Micros,
    hint: Option<Hint>,
    rejections: RejectionStreak,
    /// How many calls may be in flight after the pause.
    window: usize,
    /// Calls sent since then, each with the instant at which it stops blocking others.
    in_flight: VecDeque<(CallNumber, Micros)>,
}

/// Consecutive rejections without a hint.
#[derive(Default, Debug)]
struct RejectionStreak {
    count: u32,
    /// When the last of them was counted.
    last: Micros,
}

impl Backoff {
    /// A call without a response for this long after a pause no longer blocks others.
    pub(super) const REPLY_TIMEOUT: Micros = Micros::from_secs(1);

    /// No pause and no rejections.
    pub(super) fn none() -> Self {
        let rejections = RejectionStreak::default();
        Self { until: Micros::ZERO, hint: None, rejections, window: 1, in_flight: VecDeque::new() }
    }

    /// No call may be sent before this.
    pub(super) fn until(&self) -> Micros {
        self.until
    }

    /// The header that caused the pause; `None` for rejections without a hint.
    pub(super) fn hint(&self) -> Option<Hint> {
        self.hint
    }

    /// Lengthens the pause to `until`; `false` if it lasts that long already. A pause is never
    /// shortened: responses can arrive out of order, and the longest demand may arrive first.
    pub(super) fn lengthen(&mut self, until: Micros, hint: Option<Hint>) -> bool {
        if until <= self.until {
            return false;
        }
        (self.until, self.hint) = (until, hint);
        self.window = 1;
        self.in_flight.clear();
        true
    }

    /// The pause after a rejection without a hint of a call sent at `sent`: 1 s, doubled with each
    /// in a row up to 60 s. `random` adds up to half of it, so that clients that were rejected
    /// together do not retry together.
    ///
    /// `None` for a call that was in flight when the last rejection was counted: a hundred calls
    /// rejected at once count as one rejection.
    pub(super) fn back_off(&mut self, sent: Micros, now: Micros, random: u64) -> Option<Micros> {
        let RejectionStreak { count, last } = &mut self.rejections;
        if *count > 0 && sent <= *last {
            return None;
        }
        let seconds = (1 << (*count).min(6)).min(60);
        (*count, *last) = (count.saturating_add(1), now);
        let span = Micros::from_secs(seconds);
        Some(span.saturating_add(Micros::new(random % (span.get() / 2 + 1))))
    }

    /// Ends the row of rejections, unless the call was sent before the last of them.
    pub(super) fn reset_streak(&mut self, sent: Micros) {
        if sent > self.rejections.last {
            self.rejections = RejectionStreak::default();
        }
    }

    /// When the next call may be sent, if no response arrives before.
    pub(super) fn next_call_at(&mut self, now: Micros) -> Micros {
        // A slow call is treated like a served one.
        while self.in_flight.front().is_some_and(|(_, timeout_at)| *timeout_at <= now) {
            self.in_flight.pop_front();
            self.window = self.window.saturating_add(1);
        }
        let full = self.in_flight.len() >= self.window;
        self.in_flight.front().filter(|_| full).map_or(self.until, |(_, timeout_at)| *timeout_at)
    }

    /// Starts a call. The pause must be over, and the window must not be full.
    pub(super) fn start_call(&mut self, number: CallNumber, now: Micros) {
        self.in_flight.push_back((number, now.saturating_add(Self::REPLY_TIMEOUT)));
    }

    /// Removes a call from those in flight; `false` if it was not one of them.
    pub(super) fn release(&mut self, number: CallNumber) -> bool {
        let position = self.in_flight.iter().position(|(out, _)| *out == number);
        position.is_some_and(|position| self.in_flight.remove(position).is_some())
    }

    /// Allows one more call in flight.
    pub(super) fn raise_limit(&mut self) {
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
    fn the_later_end_wins_whichever_response_comes_first() {
        let mut pause = Backoff::none();
        assert!(pause.lengthen(at(10), Some(Hint::RetryAfter)));
        for earlier in [0, 9, 10] {
            assert!(!pause.lengthen(at(earlier), Some(Hint::RateLimit)), "{earlier}");
        }
        assert_eq!((pause.until(), pause.hint()), (at(10), Some(Hint::RetryAfter)));
        assert!(pause.lengthen(at(11), None));
        assert_eq!((pause.until(), pause.hint()), (at(11), None));
    }

    #[test]
    fn rejections_in_a_row_double_the_pause_up_to_a_minute() {
        let mut pause = Backoff::none();
        let mut now = at(100);
        for seconds in [1, 2, 4, 8, 16, 32, 60, 60, 60] {
            let span = pause.back_off(now, now, 0).unwrap();
            assert_eq!(span, at(seconds));
            now = now.saturating_add(span);
        }
    }

    #[test]
    fn jitter_adds_at_most_a_half() {
        for random in [0, 1, SECOND / 2, SECOND / 2 + 1, 7 * SECOND, u64::MAX] {
            let span = Backoff::none().back_off(at(1), at(1), random).unwrap().get();
            assert!((SECOND..=SECOND * 3 / 2).contains(&span), "{random}: {span}");
        }
        let longest = Backoff::none().back_off(at(1), at(1), SECOND / 2).unwrap();
        assert_eq!(longest.get(), SECOND * 3 / 2);
    }

    #[test]
    fn calls_that_are_rejected_together_count_as_one_rejection() {
        let mut pause = Backoff::none();
        assert!(pause.back_off(at(1), at(2), 0).is_some());
        for sent in [0, 1, 2] {
            assert_eq!(pause.back_off(at(sent), at(3), 0), None, "{sent}");
        }
        assert_eq!(pause.back_off(at(3), at(4), 0), Some(at(2)));
    }

    #[test]
    fn only_a_call_sent_later_ends_the_row() {
        for (sent, next) in [(1, 2), (5, 2), (6, 1)] {
            let mut pause = Backoff::none();
            pause.back_off(at(1), at(5), 0);
            pause.reset_streak(at(sent));
            assert_eq!(pause.back_off(at(7), at(8), 0), Some(at(next)), "{sent}");
        }
    }

    #[test]
    fn after_a_pause_one_call_is_sent_and_two_for_each_served_one() {
        let mut pause = Backoff::none();
        pause.lengthen(at(10), None);
        assert_eq!(pause.next_call_at(at(1)), at(10));
        let mut next = 0;
        for round in [1, 2, 4, 8] {
            let first = next;
            while pause.next_call_at(at(10)) <= at(10) {
                pause.start_call(next, at(10));
                next += 1;
            }
            assert_eq!(next - first, round);
            assert_eq!(pause.next_call_at(at(10)), at(11), "and then none for a second");
            for number in first..next {
                assert!(pause.release(number));
                pause.raise_limit();
            }
        }
        assert!(!pause.release(0), "it was released already");
    }

    #[test]
    fn a_call_without_a_response_for_a_second_blocks_no_other() {
        let mut pause = Backoff::none();
        pause.lengthen(at(10), None);
        pause.start_call(0, at(10));
        assert_eq!(pause.next_call_at(at(10)), at(11));
        let last = Micros::new(at(11).get() - 1);
        assert_eq!(pause.next_call_at(last), at(11));
        assert!(pause.next_call_at(at(11)) <= at(11));
        pause.start_call(1, at(11));
        assert!(pause.next_call_at(at(11)) <= at(11), "as if it were served");
        pause.start_call(2, at(11));
        assert_eq!(pause.next_call_at(at(11)), at(12));
        assert!(!pause.release(0));
    }

    #[test]
    fn after_a_new_pause_one_call_is_sent_again() {
        let mut pause = Backoff::none();
        pause.lengthen(at(10), None);
        pause.start_call(0, at(10));
        pause.raise_limit();
        pause.lengthen(at(20), None);
        assert!(!pause.release(0), "it was sent before the pause");
        pause.start_call(1, at(20));
        assert_eq!(pause.next_call_at(at(20)), at(21));
    }
}
