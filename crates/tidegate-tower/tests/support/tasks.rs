//! Tasks that are polled when they are woken and only then, on a clock that is turned by hand: each
//! run is the same, and nothing sleeps.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use tidegate::{Clock, ManualClock, Micros};

type Task<T> = Pin<Box<dyn Future<Output = T>>>;

pub(crate) struct Tasks<T> {
    clock: ManualClock,
    start: Micros,
    tasks: Vec<Option<Task<T>>>,
    done: Vec<Option<(u64, T)>>,
    woken: Arc<Mutex<VecDeque<usize>>>,
}

impl<T> Tasks<T> {
    pub(crate) fn new(clock: &ManualClock) -> Self {
        let (clock, start) = (clock.clone(), clock.elapsed());
        Self { clock, start, tasks: Vec::new(), done: Vec::new(), woken: Arc::default() }
    }

    /// Adds a task and lets it run as far as it can now.
    pub(crate) fn start(&mut self, future: impl Future<Output = T> + 'static) -> usize {
        let task = self.tasks.len();
        self.tasks.push(Some(Box::pin(future)));
        self.done.push(None);
        self.woken.lock().unwrap().push_back(task);
        self.settle();
        task
    }

    /// Drops a task; `false` if it was done.
    pub(crate) fn drop_task(&mut self, task: usize) -> bool {
        let dropped = self.tasks[task].take().is_some();
        self.settle();
        dropped
    }

    /// Turns the clock from one waking to the next, until `span` has passed.
    pub(crate) fn run_for(&mut self, span: Duration) {
        let end = self.clock.elapsed().saturating_add(span.into());
        while let Some(at) = self.clock.next_wake().filter(|at| *at <= end) {
            self.turn_to(at);
        }
        self.turn_to(end);
    }

    /// Turns the clock from one waking to the next, until nobody sleeps.
    pub(crate) fn run_until_idle(&mut self) {
        while let Some(at) = self.clock.next_wake() {
            self.turn_to(at);
        }
    }

    /// When the task was done, in milliseconds since the start, and with what.
    pub(crate) fn done(&self, task: usize) -> Option<&(u64, T)> {
        self.done[task].as_ref()
    }

    /// Milliseconds since the start.
    pub(crate) fn now(&self) -> u64 {
        self.clock.elapsed().saturating_sub(self.start).get() / 1_000
    }

    fn turn_to(&mut self, at: Micros) {
        self.clock.advance(at.saturating_sub(self.clock.elapsed()).into());
        self.settle();
    }

    fn settle(&mut self) {
        loop {
            let Some(task) = self.woken.lock().unwrap().pop_front() else { return };
            let Some(future) = &mut self.tasks[task] else { continue };
            let waker = Waker::from(Arc::new(Bell { task, woken: self.woken.clone() }));
            if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
                self.done[task] = Some((self.now(), output));
                self.tasks[task] = None;
            }
        }
    }
}

struct Bell {
    task: usize,
    woken: Arc<Mutex<VecDeque<usize>>>,
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.woken.lock().unwrap().push_back(self.task);
    }
}
