//! The batcher: queues checks, sends batches, and waits for the replies.

use std::sync::Arc;

use redis::Cmd;
use tidegate::EngineError;
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, oneshot};
use tokio::time::{Instant, timeout_at};

use super::check::{BatchMode, CancelOnDrop, CheckReply, QueuedCaller, QueuedCheck};
use super::group::{Batch, BatchReply};
use super::queue::{QueueAdmission, SendPermitId, SendQueues};
use crate::connection::error::{CallError, ConnectFailure};
use crate::durability::replica_ack::SendVia;
use crate::durability::unconfirmed::Unconfirmed;
use crate::protocol::encode::{encode_checks, encode_lean};
use crate::protocol::reply::{Status, engine_error};
use crate::protocol::request::{CheckScript, ScriptRequest};
use crate::protocol::sender::ScriptSender;

/// Groups concurrent checks into batches.
pub(crate) struct Batcher {
    sender: ScriptSender,
    queues: SendQueues,
    /// Limits the queued checks.
    queue_permits: Arc<Semaphore>,
    mode: BatchMode,
}

impl Batcher {
    /// The most checks in all queues, a few hundred bytes each. A server that decides 100,000 a
    /// second and a deadline of 100 ms would leave 10,000 of them queued.
    const MAX_QUEUED: usize = 65_536;

    pub(crate) fn new(sender: ScriptSender, mode: BatchMode) -> Arc<Self> {
        let queue_permits = Semaphore::new(Self::MAX_QUEUED).into();
        Arc::new(Self { sender, queues: SendQueues::default(), queue_permits, mode })
    }

    /// The reply of the script to a check, before `until`.
    pub(crate) async fn check(
        self: &Arc<Self>,
        request: &ScriptRequest,
        until: Instant,
    ) -> Result<Status, EngineError> {
        let check = Arc::new(QueuedCheck::new(request.clone()));
        let mut permit = None;
        // Outside a runtime there is no timer to wait with, and the router returns that error.
        if self.mode != BatchMode::Off && Handle::try_current().is_ok() {
            let (reply, receiver) = oneshot::channel();
            let queued = || {
                let permit = Arc::clone(&self.queue_permits).try_acquire_owned().ok()?;
                Some(QueuedCaller { check: Arc::clone(&check), until, reply, _permit: permit })
            };
            match self.queues.admit(check.queue_key(self.mode), until, queued) {
                QueueAdmission::Now(now) => permit = Some(now),
                QueueAdmission::QueueFull(permit) => {
                    permit.into_iter().for_each(|permit| self.spawn_sender(permit));
                    let text =
                        "too many calls are queued for redis; reduce the load or add capacity";
                    return Err(engine_error(CallError::not_sent(text), true));
                }
                queued => {
                    if let QueueAdmission::Next(permit) = queued {
                        self.spawn_sender(permit);
                    }
                    let (reply, nth) = self.wait(&check, until, receiver).await?;
                    return Ok(reply.nth(nth, request));
                }
            }
        }
        // When dropped, it sends the queued checks.
        let _permit = permit.map(|permit| CallerPermit { batcher: self, permit });
        let mut batch = Batch::of_one(check);
        let (reply, nth) = self.evaluate(&mut batch, until).await.reply_for(0, 1)?;
        Ok(reply.nth(nth, request))
    }

    async fn wait(
        &self,
        check: &QueuedCheck,
        until: Instant,
        receiver: oneshot::Receiver<CheckReply>,
    ) -> CheckReply {
        let cancel = CancelOnDrop(check);
        let reply = timeout_at(until, receiver).await;
        let never_sent = check.try_claim();
        drop(cancel);
        let router = &self.sender.router;
        let error = match reply {
            Ok(Ok(reply)) => return reply,
            // If there is no connection, the router returns a better reason.
            _ if never_sent => {
                let late = "timed out in the queue for redis; raise the deadline";
                let ready = router.ready(until, check.request.slot()).await;
                ready.err().unwrap_or_else(|| CallError::not_sent(late))
            }
            Ok(Err(_)) => {
                let text = "the tokio runtime of the sending task was shut down";
                CallError::ConnectionLost(ConnectFailure(text.into()).into())
            }
            Err(_) => match router.replicas_to_confirm() {
                0 => CallError::TimedOut,
                wanted => return Err(Unconfirmed::NoReply { wanted }.into()),
            },
        };
        Err(engine_error(error, true))
    }

    /// Sends a batch and returns the replies to its groups. Delivers denials before replicas
    /// confirm the rest.
    async fn evaluate(&self, batch: &mut Batch, until: Instant) -> BatchReply {
        let time = self.sender.time();
        let decided_by = batch.decided_by();
        let push = |cmd: &mut Cmd| match decided_by {
            CheckScript::General => encode_checks(cmd, batch.groups(), &time),
            _ => encode_lean(cmd, batch.groups(), &time),
        };
        let (script, slot) = (batch.script(), batch.slot());
        let sent = Instant::now();
        let reply = self.sender.eval(script, slot, SendVia::Confirmed, until, push).await;
        let (reply, ack) = match reply {
            Ok((value, ack)) => {
                self.queues.round_trip.record(sent.elapsed());
                (Ok(value), ack)
            }
            Err(error) => (Err(error), None),
        };
        let groups = match decided_by {
            CheckScript::General => Status::of_groups(reply, batch.groups()),
            _ => Status::of_lean_groups(reply, batch.groups()),
        };
        let mut replies = BatchReply { groups, confirmed: Ok(()) };
        if let Some(ack) = ack.filter(|_| replies.any_admitted()) {
            batch.deliver(&replies, |index| replies.admitted(index));
            replies.confirmed = ack.confirm(until, None).await;
        }
        replies
    }

    /// Sends all queued checks, batch by batch, from a task.
    fn spawn_sender(self: &Arc<Self>, permit: SendPermitId) {
        let permit = TaskPermit { batcher: Arc::clone(self), permit };
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(permit.send_queued());
        }
    }
}

/// The send permit of a caller that sends its own check. When dropped, also in the middle of the
/// call, it passes to the queued checks.
struct CallerPermit<'a> {
    batcher: &'a Arc<Batcher>,
    permit: SendPermitId,
}

impl Drop for CallerPermit<'_> {
    fn drop(&mut self) {
        if !self.batcher.queues.end_if_empty(self.permit) {
            self.batcher.spawn_sender(self.permit);
        }
    }
}

/// The send permit of a task. If the runtime is shut down, a new task would be dropped as well: so
/// the permit just ends, and the next caller sends the queued checks.
struct TaskPermit {
    batcher: Arc<Batcher>,
    permit: SendPermitId,
}

impl Drop for TaskPermit {
    fn drop(&mut self) {
        self.batcher.queues.end(self.permit);
    }
}

impl TaskPermit {
    async fn send_queued(self) {
        let Batcher { sender, queues, mode, .. } = &*self.batcher;
        loop {
            // No check counts as sent before there is a connection.
            if let Some((slot, until)) = queues.last_queued(self.permit) {
                if let Err(why) = sender.router.ready(until, slot).await {
                    queues.reject_late(self.permit, &why);
                } else {
                    let mut batch = queues.next_batch(self.permit, *mode);
                    if let Some(until) = batch.until() {
                        let replies = self.batcher.evaluate(&mut batch, until).await;
                        batch.deliver(&replies, |_| 0);
                    }
                }
            }
            if queues.end_if_empty(self.permit) {
                return;
            }
        }
    }
}
