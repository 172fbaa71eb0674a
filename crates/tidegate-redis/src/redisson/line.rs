//! Lines of those who wait for permits of the same limiter.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tidegate::Micros;
use tokio::sync::{Mutex as Turn, Notify, Semaphore};

/// The lines of a client, by the names of the limiters.
pub(crate) struct Lines {
    by_name: Mutex<HashMap<Box<str>, Weak<Line>>>,
    /// For tasks that take back what nobody has heard of.
    pub(super) enders: Arc<Semaphore>,
}

/// Where those stand who wait for permits of one limiter, in the order in which they came.
pub(super) struct Line {
    /// Tokio's lock goes to whoever asked for it first, and to the next when that one is dropped.
    pub(super) turn: Turn<()>,
    /// Somebody in this process has given something back.
    pub(super) released: Notify,
    pace: Mutex<Pace>,
    /// The rate and the interval in ms when this client last looked. By that it knows when Java has lowered it.
    seen: Mutex<Option<(u64, u64)>>,
}

/// How fast those follow each other who have waited.
#[derive(Default)]
struct Pace {
    gap: Micros,
    next: Micros,
}

impl Line {
    /// A line asks the instant that something comes back, and Redisson's timers are up to 100 ms late: without a
    /// gap between those in line, nothing would be left for Java, ever.
    const LONGEST_GAP: Micros = Micros::from_millis(5);

    /// Somebody was turned away by a limiter of which a permit takes `span` on average. A longer gap than that
    /// would leave permits to nobody.
    pub(super) fn turned_away(&self, span: Micros) {
        self.pace().gap = span.min(Self::LONGEST_GAP);
    }

    /// Somebody who had waited got something.
    pub(super) fn served(&self, now: Micros) {
        let mut pace = self.pace();
        pace.next = now.saturating_add(pace.gap);
    }

    /// When the next may ask, who comes `now`; later than that if somebody got something just before.
    pub(super) fn next(&self, now: Micros) -> Micros {
        self.pace().next.max(now)
    }

    pub(super) fn seen(&self) -> Option<(u64, u64)> {
        *self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn see(&self, rate_and_interval: (u64, u64)) {
        *self.seen.lock().unwrap_or_else(PoisonError::into_inner) = Some(rate_and_interval);
    }

    fn pace(&self) -> MutexGuard<'_, Pace> {
        self.pace.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for Lines {
    fn default() -> Self {
        Self { by_name: Mutex::default(), enders: Semaphore::new(Self::MOST_ENDERS).into() }
    }
}

impl Lines {
    /// How many tasks take something back at a time. Beyond that, it comes back after its interval.
    const MOST_ENDERS: usize = 1_024;
    /// Below this many, names of limiters that are gone may stay.
    const FEW: usize = 64;

    /// The line of all limiters of that name.
    pub(super) fn line(&self, name: &str) -> Arc<Line> {
        let mut lines = self.by_name.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(line) = lines.get(name).and_then(Weak::upgrade) {
            return line;
        }
        // Only when it would grow anyway, so that each is looked at seldom.
        if lines.len() >= Self::FEW && lines.len() == lines.capacity() {
            lines.retain(|_, line| line.strong_count() > 0);
        }
        let line = Arc::new(Line {
            turn: Turn::new(()),
            released: Notify::new(),
            pace: Mutex::default(),
            seen: Mutex::default(),
        });
        lines.insert(name.into(), Arc::downgrade(&line));
        line
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limiters_of_one_name_share_a_line_and_lines_of_nobody_go() {
        let lines = Lines::default();
        let kept = lines.line("kept");
        assert!(Arc::ptr_eq(&kept, &lines.line("kept")));
        for nth in 0..100_000 {
            lines.line(&nth.to_string());
        }
        assert!(lines.by_name.lock().unwrap().len() < 1_000);
        assert!(Arc::ptr_eq(&kept, &lines.line("kept")));
    }
}
