//! A run: when it begins and ends, who asks, and what comes of it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tidegate::simulate::{Keys, Rng};
use tidegate::{Clock, Micros, SystemClock};
use tokio::sync::Notify;

use super::ask::{Answer, Asker, Trouble};
use super::plan::{Load, Plan};
use super::rate::Rate;
use super::tally::{Tally, Times};
use super::target::Target;

/// What all who ask have in common.
pub(crate) struct Run {
    pub(crate) target: Arc<Target>,
    pub(crate) plan: Plan,
    keys: Keys,
    /// When the first question is due.
    pub(crate) begin: Micros,
    /// What is due from here on counts.
    pub(crate) counts_from: Micros,
    /// In microseconds: nothing is due from here on.
    end: AtomicU64,
    /// One for each who asks at a fixed rate.
    pub(crate) wakes: Vec<Notify>,
    /// Several, so that nobody waits for another to count.
    tallies: Vec<Mutex<Tally>>,
}

/// How long what was due before the end is still sent after it.
const LATE: Micros = Micros::from_secs(1);
/// How many tallies there are.
const TALLIES: usize = 16;

pub(crate) fn now() -> Micros {
    SystemClock.elapsed()
}

impl Run {
    /// A run that begins now.
    pub(crate) fn new(target: Arc<Target>, plan: Plan) -> Self {
        let keys = Keys::new(plan.keys, plan.zipf);
        let who = plan.connections as usize;
        let (begin, wakes) = (
            now(),
            match plan.load {
                Load::Closed => Vec::new(),
                Load::Open(_) => (0..who).map(|_| Notify::new()).collect(),
            },
        );
        let counts_from = begin.saturating_add(plan.warmup);
        let end = AtomicU64::new(counts_from.saturating_add(plan.duration).get());
        let tallies = (0..who.min(TALLIES)).map(|_| Mutex::new(Tally::new())).collect();
        Self { target, plan, keys, begin, counts_from, end, wakes, tallies }
    }

    /// When it ends.
    pub(crate) fn end(&self) -> Micros {
        Micros::new(self.end.load(Ordering::Relaxed))
    }

    /// Ends it now, unless it has ended.
    pub(crate) fn stop(&self) {
        self.end.fetch_min(now().get(), Ordering::Relaxed);
        self.wakes.iter().for_each(Notify::notify_one);
    }

    /// How many questions have come to an end that count.
    pub(crate) fn requests(&self) -> u64 {
        self.tallies.iter().map(|tally| lock(tally).requests()).sum()
    }

    /// What has come of them all.
    pub(crate) fn tally(&self) -> Tally {
        let mut all = Tally::new();
        self.tallies.iter().for_each(|tally| all.merge(lock(tally).clone()));
        all
    }
}

fn lock(tally: &Mutex<Tally>) -> std::sync::MutexGuard<'_, Tally> {
    tally.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One of those who ask.
pub(crate) struct Driver {
    run: Arc<Run>,
    /// Which one, from 0.
    nth: usize,
    asker: Option<Asker>,
    rng: Rng,
    chosen: Vec<u32>,
    answers: Vec<Answer>,
    /// How long to leave a target alone that has hung up.
    pause: Micros,
}

impl Driver {
    const FIRST_PAUSE: Micros = Micros::from_millis(10);
    const LONGEST_PAUSE: Micros = Micros::from_secs(1);

    pub(crate) fn new(run: Arc<Run>, nth: usize, asker: Option<Asker>) -> Self {
        // Seeds next to each other would make streams next to each other.
        let mut seeds = Rng::new(run.plan.seed ^ (nth as u64).rotate_left(32));
        let rng = Rng::new(seeds.any());
        let (chosen, answers) = (Vec::new(), Vec::new());
        Self { run, nth, asker, rng, chosen, answers, pause: Self::FIRST_PAUSE }
    }

    /// Asks until the end.
    pub(crate) async fn drive(mut self) {
        match self.run.plan.load {
            Load::Closed => self.drive_closed().await,
            Load::Open(rate) => self.drive_open(rate).await,
        }
    }

    async fn drive_closed(&mut self) {
        let mut due = vec![Micros::ZERO; self.run.plan.pipeline as usize];
        loop {
            let now = now();
            if now >= self.run.end() {
                return;
            }
            due.fill(now);
            self.ask(&due).await;
        }
    }

    /// Of the questions that are due one after the other, each who asks has every n-th, if there are n.
    async fn drive_open(&mut self, rate: Rate) {
        let (run, step) = (self.run.clone(), self.run.wakes.len() as u64);
        let due_at = |nth: u64| run.begin.saturating_add(rate.due(nth));
        let first = rate.due_before(run.counts_from.saturating_sub(run.begin));
        let counted = |nth: u64| nth + first.saturating_sub(nth).div_ceil(step) * step;
        let (mut next, mut due) = (self.nth as u64, Vec::new());
        loop {
            let (now, end) = (now(), run.end());
            if now >= run.counts_from {
                // What the warm-up was late with is no burden on what counts.
                next = counted(next);
            }
            if due_at(next) >= end {
                return;
            }
            if now < due_at(next) {
                run.wakes[self.nth].notified().await;
                continue;
            }
            if now >= end.saturating_add(LATE) {
                self.give_up(rate, counted(next), now);
                return;
            }
            due.clear();
            while due.len() < run.plan.pipeline as usize
                && due_at(next) <= now
                && due_at(next) < end
            {
                due.push(due_at(next));
                next += step;
            }
            self.ask(&due).await;
        }
    }

    /// Counts what was due before the end from `next` on, and has not been sent by now.
    fn give_up(&self, rate: Rate, next: u64, now: Micros) {
        let (run, step) = (&self.run, self.run.wakes.len() as u64);
        let until = rate.due_before(run.end().saturating_sub(run.begin));
        let count = until.saturating_sub(next).div_ceil(step);
        let due_at = |nth: u64| run.begin.saturating_add(rate.due(next + nth * step));
        let waited = |nth: u64| now.saturating_sub(due_at(nth));
        self.tally(|tally| tally.add_unsent(count, waited));
    }

    /// Asks as many questions as are due, and counts what comes of them.
    async fn ask(&mut self, due: &[Micros]) {
        self.chosen.clear();
        self.chosen.extend(due.iter().map(|_| self.run.keys.draw(&mut self.rng)));
        self.answers.clear();
        let (target, patience) = (&*self.run.target, self.run.plan.patience);
        let deadline = target.deadline(patience);
        let sent = now();
        let asked = exchange(&mut self.asker, target, &self.chosen, &mut self.answers);
        let lost = match tokio::time::timeout(deadline, asked).await {
            Ok(Ok(())) => None,
            Ok(Err(trouble)) => Some(trouble),
            Err(_) => Some(too_late(patience)),
        };
        let done = now();
        if let Some(trouble) = &lost {
            self.asker = None;
            self.answers.resize(due.len(), Answer::Trouble(trouble.clone()));
        }
        let answers = std::mem::take(&mut self.answers);
        self.tally(|tally| {
            for (due, answer) in due.iter().copied().zip(&answers) {
                match due < self.run.counts_from {
                    true => tally.warmup += 1,
                    false => tally.add(Times { due, sent, done }, answer.clone()),
                }
            }
        });
        self.answers = answers;
        match lost {
            Some(_) => self.wait_a_while(done).await,
            None => self.pause = Self::FIRST_PAUSE,
        }
    }

    fn tally(&self, add: impl FnOnce(&mut Tally)) {
        add(&mut lock(&self.run.tallies[self.nth % self.run.tallies.len()]));
    }

    /// A target that hangs up is asked again soon, and then ever later.
    async fn wait_a_while(&mut self, now: Micros) {
        let until = match self.run.plan.load {
            Load::Closed => self.run.end(),
            Load::Open(_) => self.run.end().saturating_add(LATE),
        };
        tokio::time::sleep(self.pause.min(until.saturating_sub(now)).into()).await;
        self.pause = self.pause.saturating_add(self.pause).min(Self::LONGEST_PAUSE);
    }
}

/// Asks about these keys, over a new connection if there is none.
pub(crate) async fn exchange(
    asker: &mut Option<Asker>,
    target: &Target,
    keys: &[u32],
    answers: &mut Vec<Answer>,
) -> Result<(), Trouble> {
    let asker = match asker.take().filter(|asker| !asker.is_over()) {
        Some(present) => asker.insert(present),
        None => asker.insert(target.connect().await?),
    };
    asker.ask(keys, answers).await
}

pub(crate) fn too_late(patience: Micros) -> Trouble {
    let patience: std::time::Duration = patience.into();
    Trouble::new("timeout", format_args!("no answer within {patience:?}"))
}
