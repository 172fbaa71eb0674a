//! True time, and the clocks of processes that do not run alike.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};

use tidegate::{Clock, Micros, Sleep};

use crate::world::World;

/// When everything begins, in microseconds since the epoch.
pub(crate) const BEGIN: u64 = 1_700_000_000_000_500;

/// True time, and what is to happen when.
#[derive(Default)]
pub(crate) struct Timeline {
    agenda: Mutex<Agenda>,
    /// Counts whatever anybody does, so that it is known when nobody does anything.
    activity: AtomicU64,
}

#[derive(Default)]
struct Agenda {
    now: u64,
    count: u64,
    /// In the order of time, and of what is at one instant in the order in which it was planned.
    due: BTreeMap<(u64, u64), Due>,
}

pub(crate) enum Due {
    Wake(Waker),
    Happen(Happening),
}

/// Something that happens to the world.
pub(crate) type Happening = Box<dyn FnOnce(&Arc<World>) + Send>;

impl Timeline {
    pub(crate) fn new() -> Arc<Self> {
        let timeline = Self::default();
        timeline.agenda().now = BEGIN;
        Arc::new(timeline)
    }

    pub(crate) fn now(&self) -> u64 {
        self.agenda().now
    }

    /// Lets this happen then.
    pub(crate) fn plan(&self, at: u64, what: impl FnOnce(&Arc<World>) + Send + 'static) {
        self.put(at, Due::Happen(Box::new(what)));
    }

    /// Goes on to what is next, if there is anything.
    pub(crate) fn go_on(&self) -> Option<Due> {
        let mut agenda = self.agenda();
        let ((at, _), due) = agenda.due.pop_first()?;
        agenda.now = agenda.now.max(at);
        Some(due)
    }

    pub(crate) fn act(&self) {
        self.activity.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn activity(&self) -> u64 {
        self.activity.load(Ordering::Relaxed)
    }

    fn put(&self, at: u64, due: Due) -> (u64, u64) {
        let mut agenda = self.agenda();
        agenda.count += 1;
        let place = (at.max(agenda.now), agenda.count);
        agenda.due.insert(place, due);
        place
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
        Box::pin(Sleeper { timeline: self.timeline.clone(), at, place: None })
    }
}

struct Sleeper {
    timeline: Arc<Timeline>,
    at: u64,
    place: Option<(u64, u64)>,
}

impl Sleeper {
    fn leave(&mut self) {
        if let Some(place) = self.place.take() {
            self.timeline.agenda().due.remove(&place);
        }
    }
}

impl Future for Sleeper {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.timeline.act();
        if self.timeline.now() >= self.at {
            return Poll::Ready(());
        }
        self.leave();
        self.place = Some(self.timeline.put(self.at, Due::Wake(cx.waker().clone())));
        Poll::Pending
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        self.leave();
    }
}
