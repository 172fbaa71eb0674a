//! Wakes workers when their next request is due (open loop).
//!
//! Timers of the runtime are exact to a millisecond, many times the latency of a target on the
//! same machine. A thread that only sleeps is woken about 50 us late on Linux.

use std::sync::Arc;
use std::thread::{self, JoinHandle};

use tidegate::Micros;

use super::rate::RequestRate;
use super::run::{BenchRun, now};

/// The pacing thread. It ends with the run, or when this handle is dropped.
pub(crate) struct Pacer {
    run: Arc<BenchRun>,
    thread: Option<JoinHandle<()>>,
}

impl Pacer {
    pub(crate) fn start(run: &Arc<BenchRun>, rate: RequestRate) -> std::io::Result<Self> {
        let timed = run.clone();
        let thread =
            thread::Builder::new().name("pacer".into()).spawn(move || run_pacer(&timed, rate))?;
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

impl Drop for Pacer {
    fn drop(&mut self) {
        self.stop();
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn run_pacer(run: &BenchRun, rate: RequestRate) {
    let workers = run.wakes.len() as u64;
    let mut woken = 0;
    loop {
        let now = now();
        // A request due exactly now is due.
        let due = rate.due_before(now.saturating_sub(run.begin).saturating_add(Micros::new(1)));
        // One wake-up per worker is enough, however many requests are due.
        for nth in woken.max(due.saturating_sub(workers))..due {
            let worker = usize::try_from(nth % workers).unwrap_or(0);
            run.wakes[worker].notify_one();
        }
        woken = due;
        let next = run.begin.saturating_add(rate.due(woken));
        if next >= run.end() {
            // Workers that wait for a request after the end would wait forever.
            run.wakes.iter().for_each(|wake| wake.notify_one());
            return;
        }
        thread::park_timeout(next.saturating_sub(now).into());
    }
}
