//! True time, and the clocks of processes, which run at different rates.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};

use tidegate::{Clock, Micros, Sleep};

use crate::fault_simulation::world::World;

/// When every history begins, in microseconds since the epoch.
pub(crate) const BEGIN: u64 = 1_700_000_000_000_500;

/// True time, and the scheduled events.
#[derive(Default)]
pub(crate) struct Timeline {
    agenda: Mutex<Agenda>,
    /// Counts activity of tasks, to detect when all of them are idle.
    activity: AtomicU64,
}

#[derive(Default)]
struct Agenda {
    now: u64,
    count: u64,
    /// Ordered by time, and at one instant by the order of scheduling.
    due: BTreeMap<(u64, u64), Due>,
}

pub(crate) enum Due {
    Wake(Waker),
    Event(ScheduledEvent),
}

/// An event that changes the world.
pub(crate) type ScheduledEvent = Box<dyn FnOnce(&Arc<World>) + Send>;

impl Timeline {
    pub(crate) fn new() -> Arc<Self> {
        let timeline = Self::default();
        timeline.agenda().now = BEGIN;
        Arc::new(timeline)
    }

    pub(crate) fn now(&self) -> u64 {
        self.agenda().now
    }

    /// Schedules an event.
    pub(crate) fn plan(&self, at: u64, event: impl FnOnce(&Arc<World>) + Send + 'static) {
        self.put(at, Due::Event(Box::new(event)));
    }

    /// Advances to the next event, if there is one.
    pub(crate) fn advance(&self) -> Option<Due> {
        let mut agenda = self.agenda();
        let ((at, _), due) = agenda.due.pop_first()?;
        agenda.now = agenda.now.max(at);
        Some(due)
    }

    pub(crate) fn note_activity(&self) {
        self.activity.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn activity(&self) -> u64 {
        self.activity.load(Ordering::Relaxed)
    }

    fn put(&self, at: u64, due: Due) -> (u64, u64) {
        let mut agenda = self.agenda();
        agenda.count += 1;
        let agenda_key = (at.max(agenda.now), agenda.count);
        agenda.due.insert(agenda_key, due);
        agenda_key
    }

    fn agenda(&self) -> MutexGuard<'_, Agenda> {
        self.agenda.lock().unwrap()
    }
}

/// The clock of a process: it runs fast or slow, and shows a wrong time of day.
#[derive(Clone)]
pub(crate) struct NodeClock {
    timeline: Arc<Timeline>,
    began: u64,
    /// Its pace, in thousandths of the true one.
    pub(crate) pace: u64,
    ahead: u64,
}

impl NodeClock {
    pub(crate) fn new(timeline: &Arc<Timeline>, pace: u64, ahead: u64) -> Self {
        Self { timeline: timeline.clone(), began: timeline.now(), pace, ahead }
    }

    fn passed(&self) -> u64 {
        (self.timeline.now() - self.began) * self.pace / 1_000
    }
}

impl Clock for NodeClock {
    fn now(&self) -> Micros {
        Micros::new(self.began + self.ahead + self.passed())
    }

    fn elapsed(&self) -> Micros {
        Micros::new(self.passed())
    }

    fn sleep_until(&self, elapsed: Micros) -> Sleep {
        let passed = (elapsed.get() * 1_000).div_ceil(self.pace);
        let at = self.began + passed;
        Box::pin(Sleeper { timeline: self.timeline.clone(), at, agenda_key: None })
    }
}

struct Sleeper {
    timeline: Arc<Timeline>,
    at: u64,
    agenda_key: Option<(u64, u64)>,
}

impl Sleeper {
    fn cancel(&mut self) {
        if let Some(agenda_key) = self.agenda_key.take() {
            self.timeline.agenda().due.remove(&agenda_key);
        }
    }
}

impl Future for Sleeper {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.timeline.note_activity();
        if self.timeline.now() >= self.at {
            return Poll::Ready(());
        }
        self.cancel();
        self.agenda_key = Some(self.timeline.put(self.at, Due::Wake(cx.waker().clone())));
        Poll::Pending
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        self.cancel();
    }
}
