//! Wakes those who ask when their next question is due.
//!
//! The runtime's own timers are exact to a millisecond, which is many times what a target on the same machine takes to
//! answer. A thread that does nothing but sleep is woken as soon as the system can, which on Linux is some 50 us late.

use std::sync::Arc;
use std::thread::{self, JoinHandle};

use tidegate::Micros;

use super::rate::Rate;
use super::run::{Run, now};

/// A thread that keeps time. It ends with its run, or when it is dropped.
pub(crate) struct Metronome {
    run: Arc<Run>,
    thread: Option<JoinHandle<()>>,
}

impl Metronome {
    /// Keeps time for a run at this rate.
    pub(crate) fn start(run: &Arc<Run>, rate: Rate) -> std::io::Result<Self> {
        let timed = run.clone();
        let thread =
            thread::Builder::new().name("metronome".into()).spawn(move || keep(&timed, rate))?;
        Ok(Self { run: run.clone(), thread: Some(thread) })
    }

    /// Ends the run now.
    pub(crate) fn stop(&self) {
        self.run.stop();
        if let Some(thread) = &self.thread {
            thread.thread().unpark();
        }
    }
}

impl Drop for Metronome {
    fn drop(&mut self) {
        self.stop();
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn keep(run: &Run, rate: Rate) {
    let everybody = run.wakes.len() as u64;
    let mut told = 0;
    loop {
        let now = now();
        // What is due at this very instant is due.
        let due = rate.due_before(now.saturating_sub(run.begin).saturating_add(Micros::new(1)));
        // Nobody has to be woken twice.
        for nth in told.max(due.saturating_sub(everybody))..due {
            let place = usize::try_from(nth % everybody).unwrap_or(0);
            run.wakes[place].notify_one();
        }
        told = due;
        let next = run.begin.saturating_add(rate.due(told));
        if next >= run.end() {
            // Whoever waits for one that will not be due any more.
            run.wakes.iter().for_each(|wake| wake.notify_one());
            return;
        }
        thread::park_timeout(next.saturating_sub(now).into());
    }
}
