//! ManualTasks polled only when woken, on a manual clock: deterministic, and without sleeping.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use tidegate::{Clock, ManualClock, Micros};

type Task<T> = Pin<Box<dyn Future<Output = T>>>;

pub struct ManualTasks<T> {
    clock: ManualClock,
    start: Micros,
    tasks: Vec<Option<Task<T>>>,
    done: Vec<Option<(u64, T)>>,
    woken: Arc<Mutex<VecDeque<usize>>>,
}

impl<T> ManualTasks<T> {
    pub fn new(clock: &ManualClock) -> Self {
        let (clock, start) = (clock.clone(), clock.elapsed());
        Self { clock, start, tasks: Vec::new(), done: Vec::new(), woken: Arc::default() }
    }

    /// Adds a task and polls it until it is pending.
    pub fn start(&mut self, future: impl Future<Output = T> + 'static) -> usize {
        let task = self.tasks.len();
        self.tasks.push(Some(Box::pin(future)));
        self.done.push(None);
        self.woken.lock().unwrap().push_back(task);
        self.settle();
        task
    }

    /// Drops a task; `false` if it was done.
    pub fn drop_task(&mut self, task: usize) -> bool {
        let dropped = self.tasks[task].take().is_some();
        self.settle();
        dropped
    }

    /// Advances the clock from one wake-up to the next, until `span` has passed.
    pub fn run_for(&mut self, span: Duration) {
        let end = self.clock.elapsed().saturating_add(span.into());
        while let Some(at) = self.clock.next_wake().filter(|at| *at <= end) {
            self.advance_to(at);
        }
        self.advance_to(end);
    }

    /// Advances the clock from one wake-up to the next, until no task sleeps.
    pub fn run_until_idle(&mut self) {
        while let Some(at) = self.clock.next_wake() {
            self.advance_to(at);
        }
    }

    /// When the task completed, in milliseconds since the start, and its output.
    pub fn done(&self, task: usize) -> Option<&(u64, T)> {
        self.done[task].as_ref()
    }

    /// Milliseconds since the start.
    pub fn now(&self) -> u64 {
        self.clock.elapsed().saturating_sub(self.start).get() / 1_000
    }

    fn advance_to(&mut self, at: Micros) {
        self.clock.advance(at.saturating_sub(self.clock.elapsed()).into());
        self.settle();
    }

    fn settle(&mut self) {
        loop {
            let Some(task) = self.woken.lock().unwrap().pop_front() else { return };
            let Some(future) = &mut self.tasks[task] else { continue };
            let waker = Waker::from(Arc::new(TaskWaker { task, woken: self.woken.clone() }));
            if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
                self.done[task] = Some((self.now(), output));
                self.tasks[task] = None;
            }
        }
    }
}

struct TaskWaker {
    task: usize,
    woken: Arc<Mutex<VecDeque<usize>>>,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.woken.lock().unwrap().push_back(self.task);
    }
}
