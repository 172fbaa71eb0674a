//! What goes on over one connection: whether anybody waits for anything, and for how long already.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use hyper::body::Body;

use super::kept::Kept;

/// What goes on over one connection.
///
/// The connection looks at it now and then, at a pulse. An answer that had begun before the pulse before the last and
/// has not been taken since is stuck: over HTTP/2 a client can keep answers from being sent without the connection
/// noticing, and each is kept in memory until it goes.
#[derive(Debug, Default)]
pub(super) struct Activity {
    /// Requests that have begun.
    begun: AtomicU64,
    /// Of these, the ones that have not ended.
    in_flight: AtomicUsize,
    /// Of these, the ones whose answer lasts for as long as the client likes.
    lasting: AtomicUsize,
    /// Pulses so far.
    pulses: AtomicUsize,
    /// Answers that are being taken, by whether they began at an even or an odd pulse.
    answers: [AtomicUsize; 2],
    /// The client does not take what is written.
    stalls: AtomicBool,
}

impl Activity {
    /// Requests that have begun.
    pub(super) fn begun(&self) -> u64 {
        self.begun.load(Ordering::Relaxed)
    }

    /// Does nobody wait for anything?
    pub(super) fn is_idle(&self) -> bool {
        self.in_flight.load(Ordering::Relaxed) == 0
    }

    /// Does anybody wait for something that has an end? Whoever watches does not keep the server from ending.
    pub(super) fn is_awaited(&self) -> bool {
        self.in_flight.load(Ordering::Relaxed) > self.lasting.load(Ordering::Relaxed)
    }

    /// Does the client not take what is written?
    pub(super) fn stalls(&self) -> bool {
        self.stalls.load(Ordering::Relaxed)
    }

    /// It does not.
    pub(super) fn note_stall(&self) {
        self.stalls.store(true, Ordering::Relaxed);
    }

    /// It has taken all of it.
    pub(super) fn note_flush(&self) {
        self.stalls.store(false, Ordering::Relaxed);
    }

    /// A request begins.
    pub(super) fn begin(self: &Arc<Self>) -> Asked {
        self.begun.fetch_add(1, Ordering::Relaxed);
        self.in_flight.fetch_add(1, Ordering::Relaxed);
        Asked { activity: self.clone(), answering_since: None, lasts: Lasts::UntilTaken }
    }

    /// Time goes on. Is an answer stuck?
    pub(super) fn beat(&self) -> bool {
        // Nobody else counts them. An answer that begins meanwhile belongs to the pulse before.
        let next = self.pulses.load(Ordering::Relaxed) + 1;
        let stuck = self.answers[next % 2].load(Ordering::Relaxed) > 0;
        self.pulses.store(next, Ordering::Relaxed);
        stuck
    }
}

/// How long an answer may take.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Lasts {
    /// Not much longer than it takes to send it.
    UntilTaken,
    /// For as long as the client likes; how many there are is bounded elsewhere. Such an answer has this among its
    /// extensions.
    AsLongAsWanted,
}

/// A request that has begun; dropped, it has ended.
#[derive(Debug)]
pub(super) struct Asked {
    activity: Arc<Activity>,
    answering_since: Option<usize>,
    lasts: Lasts,
}

impl Asked {
    /// It ends when this body was taken, or nobody wants it any more.
    pub(super) fn until_taken<B: Body>(mut self, body: B, lasts: Lasts) -> Kept<B, Self> {
        self.lasts = lasts;
        match lasts {
            Lasts::AsLongAsWanted => {
                self.activity.lasting.fetch_add(1, Ordering::Relaxed);
            }
            Lasts::UntilTaken if body.is_end_stream() => {}
            Lasts::UntilTaken => {
                let pulse = self.activity.pulses.load(Ordering::Relaxed) % 2;
                self.activity.answers[pulse].fetch_add(1, Ordering::Relaxed);
                self.answering_since = Some(pulse);
            }
        }
        Kept::new(body, self)
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        if let Some(pulse) = self.answering_since {
            self.activity.answers[pulse].fetch_sub(1, Ordering::Relaxed);
        }
        if self.lasts == Lasts::AsLongAsWanted {
            self.activity.lasting.fetch_sub(1, Ordering::Relaxed);
        }
        self.activity.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use http_body_util::{Empty, Full};

    use super::*;

    #[test]
    fn an_answer_that_is_not_taken_is_stuck_at_the_second_pulse() {
        let activity = Arc::new(Activity::default());
        assert!(activity.is_idle());
        let answer =
            activity.begin().until_taken(Full::new(Bytes::from_static(b"text")), Lasts::UntilTaken);
        assert!(!activity.is_idle() && activity.begun() == 1);
        assert!(!activity.beat());
        let later =
            activity.begin().until_taken(Full::new(Bytes::from_static(b"text")), Lasts::UntilTaken);
        assert!(activity.beat(), "the first");
        drop(answer);
        assert!(activity.beat(), "the second now, too");
        drop(later);
        assert!(!activity.beat() && activity.is_idle());
    }

    #[test]
    fn a_question_may_take_its_time() {
        let activity = Arc::new(Activity::default());
        let asked = activity.begin();
        assert!((0..10).all(|_| !activity.beat()) && !activity.is_idle());
        let empty = asked.until_taken(Empty::<Bytes>::new(), Lasts::UntilTaken);
        assert!((0..10).all(|_| !activity.beat()));
        drop(empty);
        assert!(activity.is_idle());
    }

    #[test]
    fn who_watches_is_neither_stuck_nor_waited_for() {
        let activity = Arc::new(Activity::default());
        let text = || Full::new(Bytes::from_static(b"text"));
        let watched = activity.begin().until_taken(text(), Lasts::AsLongAsWanted);
        assert!((0..10).all(|_| !activity.beat()));
        assert!(!activity.is_idle() && !activity.is_awaited());
        let asked = activity.begin();
        assert!(activity.is_awaited());
        let answer = asked.until_taken(text(), Lasts::UntilTaken);
        assert!(activity.is_awaited());
        drop(watched);
        assert!(activity.is_awaited());
        drop(answer);
        assert!(activity.is_idle() && !activity.is_awaited());
    }
}
